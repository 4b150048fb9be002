import pytest
import torch

from skipqa.claims.fidelity import counterfactual_worth, saliency_fidelity, spearman
from skipqa.errors import UserError


def linear_model(weights_V: torch.Tensor, direction_D: torch.Tensor):  # type: ignore[no-untyped-def]
    """A model whose log-probability is a weighted sum over tokens: a token's worth is known."""
    return lambda tokens_BVD: (tokens_BVD @ direction_D) @ weights_V


def test_worth_of_a_linear_model_is_exact() -> None:
    torch.manual_seed(0)
    tokens, weights, direction = torch.randn(70, 5).double(), torch.rand(70).double(), torch.ones(5)
    model = linear_model(weights, direction.double())
    worth = counterfactual_worth(model, tokens, batch=16)
    want = weights * ((tokens - tokens.mean(0)) @ direction.double())
    torch.testing.assert_close(worth, want)


def test_a_perfect_and_an_inverted_saliency() -> None:
    torch.manual_seed(0)
    worth = [torch.rand(50) for _ in range(3)]
    perfect = saliency_fidelity((w, w) for w in worth)
    assert perfect.eta == 0
    assert perfect.spearman == pytest.approx(1.0)
    assert perfect.num_questions == 3
    inverted = saliency_fidelity((1 - w, w) for w in worth)
    assert inverted.spearman == pytest.approx(-1.0)


def test_calibration_removes_a_scale_but_no_error() -> None:
    torch.manual_seed(0)
    worth = torch.rand(200) * 0.05
    scaled = saliency_fidelity([(10 * worth + 0.3, worth)])
    assert scaled.eta > 0.3
    assert scaled.eta_calibrated == pytest.approx(0.0, abs=1e-8)
    noisy = saliency_fidelity([(worth + 0.01 * torch.randn(200), worth)])
    assert 0.005 < noisy.eta_calibrated < noisy.eta * 1.5


def test_spearman_matches_known_values() -> None:
    def rho(a: list[float], b: list[float]) -> float:
        return spearman(torch.tensor(a), torch.tensor(b))

    assert rho([1, 2, 3, 4, 5], [5, 6, 7, 8, 7]) == pytest.approx(0.8207826817)  # with a tie
    assert rho([1, 2, 3], [3, 1, 2]) == pytest.approx(-0.5)
    assert rho([1, 1, 1], [1, 2, 3]) == 0.0


def test_no_questions_is_an_error() -> None:
    with pytest.raises(UserError):
        saliency_fidelity([])
