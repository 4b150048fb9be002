"""Small figures as SVG and PNG without a plotting library."""
