// The page of `skipqa serve`. A photo and a question go to POST /v1/ask; what comes back, the outline
// of one answer, is drawn: kept patches, regions, passages, the attention between them, the cost.
// Whatever the server says is put in as text, never as HTML.

const NEWEST_ASKED = 50; // entries of the history
const LARGEST_UPLOAD = 24 * 2 ** 20; // bytes of a photo that is sent as it is
const LONGEST_SIDE = 4000; // pixels of a photo that is not
const THUMBNAIL_SIDE = 200;
const SETTLE_MS = 400; // after a slider has moved
const POLL_MS = 500;
const FOLDED_CHARACTERS = 320;
const HISTORY_KEY = "skipqa.history";
const AUTOMATIC = { tokens: null, passages: null, threshold: null, fast: true }; // null: the system's choice
const ERRORS = ["question-error", "photo-error", "ask-error", "compare-error"];
// Okabe and Ito's palette, as skipqa.explain draws regions: [colour, text on it]
const REGION_COLOURS = [
  ["#e69f00", "#000"], ["#56b4e9", "#000"], ["#009e73", "#000"], ["#f0e442", "#000"],
  ["#0072b2", "#fff"], ["#d55e00", "#000"], ["#cc79a7", "#000"], ["#999999", "#000"],
];
const STAGE_COLOURS = {
  encode: "#56b4e9", draft: "#cc79a7", look: "#0072b2", zoom: "#009e73", retrieve: "#f0e442",
  verify: "#d55e00", decode: "#e69f00",
};

const state = {
  photo: null, // {blob, url, thumbnail, name, example}; no blob where only the thumbnail is left
  shown: null, // the history entry on the page
  asking: null, // AbortController of the question under way
  comparing: null,
  links: [], // {region, passage, attention, casing, path}
  settings: { ...AUTOMATIC },
  history: [], // {outline, photo}, newest first
  indexes: [],
  usual: [], // names of the indexes that the server searches by itself
  chosen: null, // Set of names; null: the usual ones
  documents: [], // {file, path} about to be uploaded
  watched: new Set(), // indexes being built
};

// ---- Small things

const $ = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const hide = (yes, ...ids) => ids.forEach((id) => { $(id).hidden = yes; });
const colour = (region) => REGION_COLOURS[region % REGION_COLOURS.length];
const percent = (fraction) => `${Math.round(100 * fraction)}%`;
const plural = (count, one, many = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
const listed = (names) => names.join(", ").replace(/, ([^,]*)$/, " and $1");
const duration = (ms) => ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
const times = (value) => value.toFixed(value >= 10 ? 0 : 1);

function giga(flops) {
  const value = flops / 1e9;
  return value.toFixed(value >= 100 || value === 0 ? 0 : value >= 10 ? 1 : value >= 0.01 ? 2 : 4);
}

function bytes(count) {
  const power = Math.min(Math.floor(Math.log10(Math.max(count, 1)) / 3), 3);
  return power ? `${(count / 1000 ** power).toPrecision(3)} ${" kMG"[power]}B` : plural(count, "byte");
}

function chip(region) {
  const node = make("span", { class: "chip" }, String(region + 1));
  [node.style.background, node.style.color] = colour(region);
  return node;
}

// One line near what caused it; null takes it away.
function tell(id, failure) {
  const key = failure?.status === 401 ? [" ", make("a", { href: "/" }, "Give the key")] : [];
  $(id).replaceChildren(...(failure ? [failure.message ?? failure, ...key] : []));
  hide(!failure, id);
}

// ---- The server

class Failure extends Error {
  constructor(status, body, retryAfter) {
    super(body?.error?.message ?? `The server answered ${status}.`);
    this.status = status;
    this.param = body?.error?.param;
    this.seconds = Math.min(Math.max(Number(retryAfter) || 1, 1), 60);
  }
}

const unreachable = () => new Failure(0, { error: { message: "The server cannot be reached." } });

async function call(path, options = {}) {
  const headers = { Accept: "application/json" };
  const response = await fetch(path, { headers, ...options }).catch((error) => {
    throw error.name === "AbortError" ? error : unreachable();
  });
  const body = await response.json().catch(() => null);
  if (response.ok && body) return body;
  throw new Failure(response.status, body, response.headers.get("Retry-After"));
}

const health = () => fetch("/health", { cache: "no-store" })
  .then((response) => response.json()).then((body) => body.status, () => "away");

function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); });
  });
}

async function untilReady(signal) {
  tell("notice", "The models are being read. Questions are answered as soon as they are there.");
  try {
    while (await health() === "loading") await pause(POLL_MS, signal);
  } finally {
    tell("notice", null);
  }
}

// A busy server is asked once more when it says so, one that is still loading when it is ready.
async function patiently(form, place, signal) {
  for (let again = false; ;) {
    try {
      return (await call("/v1/ask", { method: "POST", body: form, signal })).skip;
    } catch (failure) {
      if (failure.status === 503 && await health() === "loading") {
        await untilReady(signal);
      } else if (failure.status === 429 && !again) {
        again = true;
        tell(place, `The server is busy. It is asked again in ${plural(failure.seconds, "second")}.`);
        await pause(1000 * failure.seconds, signal);
        tell(place, null);
      } else {
        throw failure;
      }
    }
  }
}

// ---- The question

function form(question, options) {
  const sent = new FormData();
  if (state.photo) sent.append("photo", state.photo.blob, state.photo.name);
  sent.append("question", question);
  for (const name of otherThanUsual()) sent.append("index", name);
  for (const [name, value] of Object.entries(options)) if (value !== null) sent.append(name, value);
  return sent;
}

function hasPhoto(place) {
  if (!state.photo || state.photo.blob) return true;
  tell(place, "Only a thumbnail of this photo is left. Give the photo again to ask about it.");
  return false;
}

async function ask() {
  clearTimeout(settling);
  ERRORS.forEach((place) => tell(place, null));
  const question = $("question").value.trim();
  if (!question) {
    tell("question-error", "Write a question first.");
    $("question").focus();
  }
  if (!question || !hasPhoto("photo-error")) return;
  giveUp();
  const [asking, { photo, settings: { fast: fast_path, ...limits } }] = [new AbortController(), state];
  state.asking = asking;
  busy(true);
  try {
    const outline = await patiently(form(question, { fast_path, ...limits }), "ask-error", asking.signal);
    state.history = [{ outline, photo }, ...state.history].slice(0, NEWEST_ASKED);
    store();
    show(state.history[0]);
    writeLink();
  } catch (failure) {
    if (failure.name === "AbortError") return;
    const near = { photo: "photo-error", image: "photo-error", question: "question-error" };
    tell(near[failure.param] ?? "ask-error", failure);
  } finally {
    if (state.asking === asking) {
      state.asking = null;
      busy(false);
    }
  }
}

function giveUp() {
  state.asking?.abort();
  state.comparing?.abort();
}

function busy(yes) {
  $("stage").classList.toggle("busy", yes);
  $("ask").textContent = yes ? "Asking…" : "Ask";
  $("result").setAttribute("aria-busy", yes);
}

// ---- The photo

async function takePhoto(file, example = null) {
  tell("photo-error", null);
  const image = make("img", { src: URL.createObjectURL(file) });
  try {
    await image.decode();
  } catch {
    URL.revokeObjectURL(image.src);
    tell("photo-error", `${file.name || "This"} is not a photo that this browser can read.`);
    return false;
  }
  const thumbnail = scaled(image, THUMBNAIL_SIDE).toDataURL("image/jpeg", 0.75);
  const large = file.size > LARGEST_UPLOAD && scaled(image, LONGEST_SIDE);
  const blob = large ? await new Promise((resolve) => { large.toBlob(resolve, "image/jpeg", 0.9); }) : file;
  state.photo = { blob, url: image.src, thumbnail, name: file.name || "photo", example };
  clearResult();
  return true;
}

function scaled(image, longest) {
  const scale = Math.min(1, longest / Math.max(image.naturalWidth, image.naturalHeight));
  const [width, height] = [image.naturalWidth, image.naturalHeight].map((side) => Math.ceil(side * scale));
  const canvas = make("canvas", { width, height });
  const pen = canvas.getContext("2d");
  pen.fillStyle = "#fff"; // JPEG has no transparency
  pen.fillRect(0, 0, width, height);
  pen.drawImage(image, 0, 0, width, height);
  return canvas;
}

function clearResult() {
  giveUp();
  [state.shown, state.links] = [null, []];
  for (const id of ["patches", "boxes", "regions", "kept-line", "lines"]) $(id).replaceChildren();
  hide(true, "result", "cost", "compared", "view-label");
  hide(false, "examples");
  busy(false);
  showPhoto();
}

function showPhoto() {
  const { photo } = state;
  hide(Boolean(photo), "empty");
  hide(!photo, "figure", "no-photo");
  $("drop").classList.toggle("filled", Boolean(photo));
  if (!photo) $("stage-photo").removeAttribute("src");
  else if ($("stage-photo").getAttribute("src") !== photo.url) $("stage-photo").src = photo.url;
  $("stage-photo").alt = "The photo you gave";
}

// ---- The settings

let settling = 0;
function settingsChanged() {
  showSettings();
  clearTimeout(settling);
  if (state.shown) settling = setTimeout(ask, SETTLE_MS);
}

function showSettings() {
  const { budget, draft, tokens: seen } = state.shown?.outline ?? {};
  const { fast, ...given } = state.settings;
  const chosen = { tokens: budget?.tokens, passages: budget?.passages, threshold: draft?.threshold };
  if (seen?.kept.length) $("tokens").max = Math.max(seen.total, given.tokens ?? 0);
  for (const name of ["tokens", "passages", "threshold"]) {
    $(name).value = given[name] ?? chosen[name] ?? $(name).value;
    const automatic = chosen[name] === undefined ? "chosen for you" : `${$(name).value}, chosen for you`;
    $(`${name}-value`).value = given[name] ?? automatic;
  }
  $("threshold-value").value = fast ? `if at least ${percent($("threshold").value)} sure` : "never";
  $("fast").checked = fast;
  $("threshold").disabled = !fast;
  $("reset").disabled = fast && Object.values(given).every((value) => value === null);
}

// ---- The outline on the page

function show(entry) {
  const { outline, photo } = entry;
  const regions = outline.image ? outline.regions : []; // without a photo, words alone were looked up
  [state.shown, state.photo] = [entry, photo];
  ERRORS.forEach((place) => tell(place, null));
  hide(true, "examples", "compared");
  hide(false, "result", "cost");
  showPhoto();
  showPatches(outline.tokens, regions);
  showRegions(outline, regions);
  showAnswer(outline);
  showPassages(outline, regions);
  showLinks(outline, regions);
  showCost(outline);
  showSettings();
  showHistory();
  drawLines();
}

function showPatches({ grid, kept, saliency }, regions) {
  const owner = new Map(regions.flatMap((region, number) => region.tokens.map((at) => [at, number])));
  const cell = (at) => ({ x: at % grid, y: Math.floor(at / grid), width: 1, height: 1 });
  const dropped = [...Array(grid * grid).keys()].filter((at) => !kept.includes(at)).map(cell);
  $("patches").setAttribute("viewBox", `0 0 ${grid} ${grid}`);
  $("patches").replaceChildren(...(kept.length ? [
    draw("path", { class: "dropped", d: dropped.map(({ x, y }) => `M${x} ${y}h1v1h-1z`).join("") }),
    ...kept.map((at) => draw("rect", {
      class: "patch", ...cell(at), "data-position": at, "data-of": owner.get(at),
      fill: owner.has(at) ? colour(owner.get(at))[0] : "none",
    })),
    draw("g", { class: "heat" }, draw("rect", { class: "dark", width: grid, height: grid }),
      saliency.map((score, at) => draw("rect", { ...cell(at), "fill-opacity": (0.85 * score).toFixed(3) }))),
  ] : []));
}

function showRegions({ tokens, route }, regions) {
  const names = regions.map(({ concepts }) => concepts.length
    ? concepts.slice(0, 3).map(({ name, prob }) => `${name} ${percent(prob)}`) : ["unnamed"]);
  $("boxes").replaceChildren(...regions.map(({ box: [left, top, right, bottom] }, number) => {
    const box = make("button", {
      type: "button", class: "region", "data-region": number,
      "aria-label": `Region ${number + 1}: ${listed(names[number])}`,
    }, chip(number));
    const sides = { left, top, width: right - left, height: bottom - top };
    for (const [side, fraction] of Object.entries(sides)) box.style[side] = `${100 * fraction}%`;
    box.style.borderColor = colour(number)[0];
    box.style.zIndex = 1000 - Math.round(999 * sides.width * sides.height); // small ones on top
    return box;
  }));
  $("regions").replaceChildren(...regions.map((region, number) => make("li", { "data-region": number },
    chip(number), ` ${names[number][0]}`, make("span", { class: "unseen" },
      ["", ...names[number].slice(1), plural(region.tokens.length, "patch", "patches")].join(", ")))));
  const line = regions.length
    ? `${tokens.kept.length} of ${tokens.total} patches kept, in ${plural(regions.length, "region")}`
    : route === "draft" ? "Seen at low resolution only; no patches were chosen" : "";
  const spoken = names.map(([name], number) => `region ${number + 1}, ${name}`).join("; ");
  $("kept-line").textContent = line;
  $("stage-photo").alt = `The photo you asked about. ${line}${spoken && `: ${spoken}`}.`;
  hide(!regions.length, "view-label");
}

function showAnswer(outline) {
  const cited = outline.grounded === false ? [] : outline.passages.filter((passage) => passage.cited);
  $("answer").replaceChildren(outline.answer || "(no answer)");
  for (const { number, title } of cited) {
    $("answer").append("\u00a0", make("a", {
      class: "cite", href: `#passage-${number}`, "aria-label": `Passage ${number}: ${title}`,
      click: (event) => { event.preventDefault(); goTo(number); },
    }, `[${number}]`));
  }
  $("certainty").textContent = outline.certainty;
  $("spoken").textContent = `Answer: ${outline.answer}. ${outline.certainty}`;
  hide(outline.confidence === null, "confidence");
  $("confidence").value = outline.confidence ?? 0;
  $("asked-as").textContent = outline.asked_as ? `Looked up as “${outline.asked_as}”` : "";
  $("route").replaceChildren(...routeOf(outline));
}

function goTo(number) {
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  $(`passage-${number}`).scrollIntoView({ block: "center", behavior: calm ? "auto" : "smooth" });
  $(`passage-${number}`).focus({ preventScroll: true });
}

function* routeOf({ route, draft, tokens, regions, passages, image }) {
  const fast = route === "draft";
  const enough = percent(draft?.threshold);
  const then = fast ? `${enough} is enough. It is the answer, and nothing was looked up.`
    : draft?.accepted ? `${enough} would be enough, but the fast path was off.`
      : `${enough} is needed. So ${passages.length ? "it was looked up" : "the whole path was taken"}.`;
  yield make("p", {}, make("span", { class: "path" }, fast ? "fast path" : "full path"), draft?.answer
    ? ` The draft was “${draft.answer}”, ${percent(draft.confidence)} sure; ${then}`
    : ` ${image ? "No draft was made." : "Without a photo, the words of the question were looked up."}`);
  const candidates = draft?.candidates.map(({ answer, prob }) => make("li", {}, make("span", {}, answer),
    gauge(prob, draft.threshold), make("span", {}, percent(prob))));
  if (candidates?.length) {
    yield make("details", {}, make("summary", {}, "What the draft considered"),
      make("ul", { class: "candidates" }, candidates));
  }
  if (fast) return;
  const kept = passages.filter((passage) => passage.verdict === "kept");
  const seen = [[tokens.total, "patches seen"], [tokens.kept.length, "kept"], [regions.length, "regions"]];
  const found = [[passages.length, "passages found"], [kept.length, "accepted"],
    [kept.filter((passage) => passage.cited).length, "read"]];
  const steps = [...image ? seen : [], ...found];
  yield make("ol", { class: "flow", "aria-label": "From the photo to the answer" },
    steps.map(([count, what]) => make("li", {}, make("b", {}, String(count)), ` ${what}`)));
}

function gauge(value, mark) {
  const [level, tick] = [make("i"), make("u")];
  level.style.width = percent(value);
  tick.style.left = percent(mark);
  return make("span", { class: "gauge", "aria-hidden": "true" }, level, tick);
}

function showPassages({ passages, route }, regions) {
  const nothing = make("li", { class: "none" }, "Nothing was looked up, or nothing was found.");
  const cards = passages.map((passage) => card(passage, regions));
  $("passage-list").replaceChildren(...(cards.length ? cards : [nothing]));
  hide(route === "draft", "passages-title", "passage-list");
}

function card(passage, regions) {
  const { number, verdict, cited, region } = passage;
  const scores = [`verifier ${passage.verification.toFixed(2)}`, `search score ${passage.score.toFixed(1)}`,
    `attention ${percent(passage.attention)}`];
  return make("li", {
    class: `passage ${verdict}`, id: `passage-${number}`, "data-number": number, tabindex: 0,
  },
  make("div", { class: "head" },
    make("span", { class: cited ? "number cited" : "number" }, cited ? `[${number}]` : String(number)),
    make("b", {}, passage.title), make("span", { class: "source" }, passage.index || passage.source),
    passage.origin ? make("span", { class: "source" }, `${passage.origin.address}, ${passage.origin.asked}`) : null),
  passageText(passage),
  make("p", { class: "verdict" }, make("b", {}, verdict === "kept" ? "✓ accepted" : "✕ rejected"),
    ` · ${passage.reason}${cited ? " · read for the answer" : ""}`),
  make("p", { class: "scores" }, scores.map((score) => make("span", {}, score)),
    regions[region] ? make("span", {}, "found by ", chip(region)) : null));
}

// The sentences that were read are marked; of a long text they alone are shown until it is unfolded.
function passageText({ text, read }) {
  const pieces = text.split(/(?<=[.!?;])(\s+)(?=\S)/); // as skipqa.knowledge.excerpt does
  const marked = (piece) => read !== text && piece.trim() !== "" && read.includes(piece);
  const whole = pieces.map((piece) => marked(piece) ? make("mark", {}, piece) : piece);
  if (text.length <= FOLDED_CHARACTERS) return [make("p", { class: "text" }, whole)];
  const chosen = pieces.flatMap((piece, at) => marked(piece) // every second piece is a space
    ? [at && !marked(pieces[at - 2]) ? " … " : " ", make("mark", {}, piece)] : []);
  const beginning = text.slice(0, FOLDED_CHARACTERS).replace(/\s+\S*$/, "");
  const short = [...chosen.length ? chosen : [beginning], marked(pieces.at(-1)) ? "" : " …"];
  const body = make("p", { class: "text" }, short);
  const button = make("button", { type: "button", class: "link", "aria-expanded": false, click: () => {
    const open = button.getAttribute("aria-expanded") !== "true";
    button.setAttribute("aria-expanded", open);
    button.textContent = open ? "Show less" : "Show the whole passage";
    body.replaceChildren(...(open ? whole : short));
  } }, "Show the whole passage");
  return [body, button];
}

// ---- Lines from regions to passages

function showLinks({ edges, passages }, regions) {
  const attended = new Set(edges.map(({ region, passage }) => `${region} ${passage}`));
  const found = passages.map(({ region, number }) => ({ region, passage: number, attention: 0 }))
    .filter(({ region, passage }) => !attended.has(`${region} ${passage}`));
  state.links = [...found, ...edges].filter(({ region }) => regions[region]).map((link) => ({
    ...link, casing: draw("path", { class: "casing" }),
    path: draw("path", {
      class: link.attention ? "edge" : "edge found", stroke: colour(link.region)[0],
      "data-region": link.region, "data-passage": link.passage,
    }),
  }));
  $("lines").replaceChildren(...state.links.flatMap(({ casing, path }) => [casing, path]));
}

let drawing = 0;
function drawSoon() {
  cancelAnimationFrame(drawing);
  drawing = requestAnimationFrame(drawLines);
}

// Over the photo a line runs level, then turns to its passage in the gap between the columns; where
// the passages are below the photo, it runs down the margin instead.
function drawLines() {
  const origin = $("stage").getBoundingClientRect();
  const out = $("see").getBoundingClientRect().right - origin.left;
  const stacked = $("tell").getBoundingClientRect().left - origin.left < out;
  const trunks = new Map();
  for (const link of state.links) {
    const box = $("boxes").children[link.region].getBoundingClientRect();
    link.x0 = (stacked ? box.left : box.right) - origin.left;
    link.y0 = trunk(link, box, trunks) - origin.top;
  }
  for (const { region, passage, attention, x0, y0, casing, path } of state.links) {
    const card = $(`passage-${passage}`).getBoundingClientRect();
    const beside = state.links.filter((link) => link.passage === passage).map((link) => link.y0);
    beside.sort((one, other) => one - other); // lines that end side by side do not cross
    const spread = Math.min(8, 28 / beside.length) * (beside.indexOf(y0) - (beside.length - 1) / 2);
    const [x1, y1] = [card.left - origin.left, card.top + 22 + spread - origin.top];
    const [lane, turn, bend] = [-12 + 1.6 * (region % 6), 6, 0.55 * (x1 - out)];
    const d = stacked
      ? `M${x0} ${y0}H${lane + turn}Q${lane} ${y0} ${lane} ${y0 + turn}`
        + `V${y1 - turn}Q${lane} ${y1} ${lane + turn} ${y1}H${x1}`
      : `M${x0} ${y0}H${out}C${out + bend} ${y0} ${x1 - bend} ${y1} ${x1} ${y1}`;
    const width = attention ? 1.5 + (stacked ? 2.5 : 8.5) * attention : 1.5;
    fill(casing, { d, "stroke-width": width + 2 }, []);
    fill(path, { d, "stroke-width": width }, []);
  }
}

// Where a line leaves its box: near the middle, apart from others. Dashed ones of a region leave as one.
function trunk({ region, passage, attention }, box, trunks) {
  const name = attention ? `${region} ${passage}` : region;
  const middle = box.top + box.height / 2;
  const free = [0, 8, -8, 16, -16, 24, -24, 32, -32].filter((step) => Math.abs(step) < box.height / 2 - 3)
    .find((step) => [...trunks.values()].every((other) => Math.abs(other - middle - step) > 7));
  if (!trunks.has(name)) trunks.set(name, middle + (free ?? 0));
  return trunks.get(name);
}

// What is under the pointer or has the focus, and what it is linked to, stands out.
function light(target) {
  const held = target?.closest?.("#see [data-region], .passage");
  const { region, number } = held?.dataset ?? {};
  const linked = (link) => String(link.region) === region || String(link.passage) === number;
  const links = state.links.filter(linked);
  const regions = new Set([region, ...links.map((link) => String(link.region))]);
  const passages = new Set([number, ...links.map((link) => String(link.passage))]);
  const on = (selector, test) => document.querySelectorAll(selector)
    .forEach((node) => node.classList.toggle("on", test(node.dataset)));
  $("stage").classList.toggle("lit", Boolean(held));
  on("#see [data-region]", (data) => regions.has(data.region));
  on("#patches [data-of]", (data) => regions.has(data.of));
  on(".passage", (data) => passages.has(data.number));
  for (const link of state.links) {
    for (const line of [link.casing, link.path]) line.classList.toggle("on", links.includes(link));
  }
}

// ---- The cost

const shade = (node, stage) => {
  node.style.background = STAGE_COLOURS[stage] ?? "#8b949e";
  return node;
};

function costBar(name, stages, total, longest) {
  const paid = stages.filter(({ flops }) => flops > 0);
  const parts = paid.map((stage) => {
    const part = shade(make("span", { title: `${stage.name}: ${giga(stage.flops)} GFLOPs` }), stage.name);
    part.style.width = `${100 * stage.flops / longest}%`;
    return part;
  });
  const spoken = `${name}: ${paid.map((stage) => `${stage.name} ${giga(stage.flops)}`).join(", ")} GFLOPs`;
  return make("div", { class: "cost-row" }, make("span", {}, name),
    make("span", { class: "bar", role: "img", "aria-label": spoken }, parts),
    make("b", { class: "total" }, giga(total)));
}

function showCost({ flops, dense, stages, latency_ms: ms }) {
  const less = dense.flops / flops;
  const gap = less >= 1.05 ? `${times(less)} times less`
    : less <= 0.95 ? `${times(1 / less)} times more` : "about the same";
  const known = dense.flops ? `, the dense system ${giga(dense.flops)}: ${gap}` : "";
  $("cost-line").textContent = `${giga(flops)} GFLOPs${known}. It took ${duration(ms)}.`;
  const longest = Math.max(flops, dense.flops, 1);
  $("bars").replaceChildren(costBar("this answer", stages, flops, longest));
  if (dense.flops) $("bars").append(costBar("dense system", dense.stages, dense.flops, longest));
  const seen = [...stages, ...dense.stages].filter((stage) => stage.flops / longest > 0.002);
  $("legend").replaceChildren(...[...new Set(seen.map(({ name }) => name))].map((name) =>
    make("li", {}, shade(make("i"), name), name)));
  const number = (value) => make("td", { class: "number" }, value ?? "");
  $("stages").tBodies[0].replaceChildren(...stages.map((stage) => {
    const other = dense.stages.find(({ name }) => name === stage.name);
    return make("tr", {}, make("th", { scope: "row" }, stage.name),
      number(stage.ms.toFixed(stage.ms < 10 ? 1 : 0)),
      number(giga(stage.flops)), number(other && giga(other.flops)),
      number(stage.kept?.toLocaleString("en")), number(stage.dropped?.toLocaleString("en")),
      make("td", {}, stage.why));
  }));
}

async function compare() {
  const { shown } = state;
  tell("compare-error", null);
  if (!hasPhoto("compare-error")) return;
  state.comparing?.abort();
  const comparing = state.comparing = new AbortController();
  [$("compare").textContent, $("compare").disabled] = ["Asking the dense system…", true];
  try {
    const sent = form(shown.outline.question, { system: "dense", fast_path: false });
    const dense = await patiently(sent, "compare-error", comparing.signal);
    if (state.shown === shown) showCompared(shown.outline, dense);
  } catch (failure) {
    if (failure.name !== "AbortError") tell("compare-error", failure);
  } finally {
    [$("compare").textContent, $("compare").disabled] = ["Compare with dense", false];
  }
}

function showCompared(ours, dense) {
  const rows = {
    answer: (one) => one.answer || "(no answer)",
    "how sure": (one) => one.certainty,
    cost: (one) => `${giga(one.flops)} GFLOPs`,
    time: (one) => duration(one.latency_ms),
    patches: ({ tokens }) => tokens.kept.length ? `${tokens.kept.length} of ${tokens.total}`
      : `${tokens.total}, low resolution`,
    "passages read": (one) => String(one.passages.filter((passage) => passage.cited).length),
  };
  const column = (name) => make("th", { scope: "col" }, name);
  $("compared").replaceChildren(make("p", {}, verdictOn(ours, dense)), make("table", {},
    make("thead", {}, make("tr", {}, make("td"), column("this answer"), column("dense system"))),
    make("tbody", {}, Object.entries(rows).map(([name, value]) => make("tr", { "data-row": name },
      make("th", { scope: "row" }, name), make("td", {}, value(ours)), make("td", {}, value(dense)))))));
  hide(false, "compared");
}

function verdictOn(ours, dense) {
  const plain = ({ answer }) => answer.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, " ").trim();
  const against = (field, more, less, even) => {
    const factor = dense[field] / ours[field];
    return factor >= 1.05 ? more(times(factor)) : factor <= 0.95 ? less(times(1 / factor)) : even;
  };
  const said = [
    plain(ours) === plain(dense) ? "Both say the same." : "The answers differ.",
    against("flops", (n) => `The dense system computed ${n} times as much`,
      (n) => `The dense system computed ${n} times less`, "Both computed about as much"),
    against("latency_ms", (n) => `and took ${n} times as long.`, (n) => `and was ${n} times faster.`,
      "and took about as long."),
  ];
  if (dense.grounded && !ours.grounded) said.push("Only the dense system's answer is what a passage says.");
  if (ours.grounded && !dense.grounded) said.push("Only this answer is what a passage says.");
  if (ours.confidence !== null && dense.confidence > ours.confidence + 0.05) {
    said.push(`The dense system is surer: ${percent(dense.confidence)} against ${percent(ours.confidence)}.`);
  }
  return said.join(" ");
}

// ---- The history of this tab: in memory with photos, in sessionStorage with thumbnails alone

function store() {
  const kept = state.history.map(({ outline, photo }) =>
    ({ outline, photo: photo && { ...photo, blob: null, url: photo.thumbnail } }));
  for (let full = true; full && kept.length;) {
    try {
      sessionStorage.setItem(HISTORY_KEY, JSON.stringify(kept));
      full = false;
    } catch {
      kept.pop();
    }
  }
}

function restore() {
  try {
    state.history = JSON.parse(sessionStorage.getItem(HISTORY_KEY)) ?? [];
  } catch { /* not allowed, or not readable: it starts anew */ }
  showHistory();
}

function showHistory() {
  hide(!state.history.length, "history");
  $("history-list").replaceChildren(...state.history.map((entry) => make("li", {}, make("button", {
    type: "button", class: "asked", "aria-current": entry === state.shown ? "true" : null,
    click: () => showAgain(entry),
  }, entry.photo && make("img", { src: entry.photo.thumbnail, alt: "" }), make("span", {},
    make("span", { class: "asked-question" }, entry.outline.question),
    make("b", {}, entry.outline.answer))))));
}

function showAgain(entry) {
  giveUp();
  $("question").value = entry.outline.question;
  show(entry);
  $("stage").scrollIntoView();
}

function clearHistory() {
  for (const { photo } of state.history) if (photo && photo !== state.photo) URL.revokeObjectURL(photo.url);
  state.history = [];
  sessionStorage.removeItem(HISTORY_KEY);
  showHistory();
  $("question").focus();
}

// ---- Examples: flags in the wind that the page draws itself

const EXAMPLES = [
  // Palau
  { question: "What is the capital of this country?", cloth: "#4aadd6", disc: "#ffde00", at: 0.44 },
  // Bangladesh
  { question: "What money do people use in this country?", cloth: "#006a4e", disc: "#f42a41", at: 0.45 },
  // Japan
  { question: "What language is spoken in this country?", cloth: "#ffffff", disc: "#bc002d", at: 0.5 },
];

function drawFlag({ cloth, disc, at: middle }, width) {
  const canvas = make("canvas", { width, height: width / 1.5 });
  const pen = canvas.getContext("2d");
  pen.scale(width / 720, width / 720);
  const sky = pen.createLinearGradient(0, 0, 0, 480);
  ["#6ba1e0", "#c3dcf2"].forEach((shade, at) => sky.addColorStop(at, shade));
  pen.fillStyle = sky;
  pen.fillRect(0, 0, 720, 480);
  const hills = [["#7d9c8b", 385, 26, 150], ["#5d8a5a", 420, 18, 90], ["#47743f", 452, 8, 60]];
  for (const [shade, top, swing, length] of hills) {
    pen.fillStyle = shade;
    for (let x = 0; x < 720; x += 1) pen.fillRect(x, top + swing * Math.sin(x / length + top), 1.5, 480);
  }
  pen.fillStyle = "#5b5f66";
  pen.fillRect(122, 40, 10, 440);
  for (const layer of ["cloth", "disc", "light"]) {
    for (let x = 0; x < 450; x += 1) { // in strips that go up and down with the wind
      const wave = 2.5 * Math.PI * x / 450;
      const fold = 0.22 * Math.sqrt(x / 450) * Math.cos(wave + 0.6);
      const light = fold > 0 ? `rgb(0 0 0 / ${fold})` : `rgb(255 255 255 / ${-0.6 * fold})`;
      const chord = 2 * Math.sqrt(Math.max(0, 90 ** 2 - (x - 450 * middle) ** 2));
      const height = layer === "disc" ? chord : 300;
      pen.fillStyle = { cloth, disc, light }[layer];
      const top = 206 + 22 * (x / 450) * Math.sin(wave) - height / 2;
      pen.fillRect(132 + x, top, layer === "light" ? 1 : 1.5, height);
    }
  }
  return canvas;
}

function showExamples() {
  $("example-list").replaceChildren(...EXAMPLES.map((example, at) => make("li", {}, make("button", {
    type: "button", class: "example", "data-example": at + 1, click: () => tryExample(at + 1),
  }, drawFlag(example, 180), make("span", {}, example.question)))));
}

async function tryExample(number, question = EXAMPLES[number - 1].question) {
  $("question").value = question;
  const blob = await new Promise((resolve) => { drawFlag(EXAMPLES[number - 1], 720).toBlob(resolve); });
  if (await takePhoto(new File([blob], "flag.png", { type: blob.type }), number)) await ask();
}

// ---- Links that restore a question and its settings

function writeLink() {
  const { tokens, passages, threshold, fast } = state.settings;
  const link = new URLSearchParams({ q: state.shown.outline.question });
  for (const name of otherThanUsual()) link.append("index", name);
  const given = { tokens, passages, fast: fast ? threshold : "off", example: state.photo?.example ?? null };
  for (const [name, value] of Object.entries(given)) if (value !== null) link.set(name, value);
  history.replaceState(null, "", `#${link}`);
}

function readLink() {
  const link = new URLSearchParams(location.hash.slice(1));
  const number = (name, low, high, step = 1) => { // the nearest that is allowed, or none
    const value = Number.parseFloat(link.get(name));
    return Number.isNaN(value) ? null : Math.min(Math.max(Math.round(value / step) * step, low), high);
  };
  if (![...link.values()].some(Boolean)) return;
  state.settings = {
    tokens: number("tokens", 1, 256), passages: number("passages", 0, 16),
    threshold: number("fast", 0, 1, 0.01), fast: link.get("fast") !== "off",
  };
  if (link.has("index")) state.chosen = new Set(link.getAll("index"));
  if (link.has("q")) $("question").value = link.get("q");
  showSettings();
  showIndexes();
  const example = number("example", 1, EXAMPLES.length);
  if (example) tryExample(example, link.get("q") ?? undefined);
}

// ---- Own documents

// The names to send with a question
function otherThanUsual() {
  const { usual, chosen } = state;
  const same = chosen?.size === usual.length && usual.every((name) => chosen.has(name));
  return chosen && !same ? [...chosen] : [];
}

function choose(name, yes) {
  state.chosen ??= new Set(state.usual);
  if (yes) state.chosen.add(name); else state.chosen.delete(name);
  showIndexes();
}

async function readIndexes() {
  try {
    const [{ data, quota }, models] = await Promise.all([call("/v1/indexes"), call("/v1/models")]);
    state.indexes = data;
    state.usual = data.map(({ name }) => name).filter((name) => models.data[0].index.includes(name));
    hide(!quota.bytes, "upload");
    tell("indexes-error", null);
  } catch (failure) {
    tell("indexes-error", failure);
  }
  showIndexes();
  for (const { name, status } of state.indexes) if (status === "building") watch(name);
}

function showIndexes() {
  const rows = new Map([...$("indexes").children].map((row) => [row.dataset.index, row]));
  for (const index of state.indexes) { // a row stays where it is: it may have the focus
    const row = rows.get(index.name) ?? $("indexes").appendChild(indexRow(index));
    rows.delete(index.name);
    showIndex(row, index);
  }
  for (const row of rows.values()) row.remove();
  $("searched").textContent = `Searches ${listed(otherThanUsual()) || "the default knowledge"}.`;
}

function indexRow({ name, built_in: fixed }) {
  const remove = make("button", { type: "button", class: "quiet danger", "aria-label": `Delete ${name}`,
    click: () => { // the second click does it
      if (remove.dataset.sure) deleteIndex(name);
      [remove.dataset.sure, remove.textContent] = ["yes", "Really?"];
    },
    blur: () => { delete remove.dataset.sure; remove.textContent = "Delete"; } }, "Delete");
  const box = make("input", { type: "checkbox", change: () => choose(name, box.checked) });
  return make("li", { "data-index": name }, make("label", { class: "check" }, box, make("b", {}, name)),
    make("span", { class: "facts" }), fixed ? null : remove,
    make("progress", { "aria-label": `Building ${name}` }),
    make("p", { class: "error" }), make("details", { class: "skipped" }, make("summary"), make("ul")));
}

function showIndex(row, { name, status, progress: { step, done, total }, error, skipped, ...index }) {
  const [building, part] = [status === "building", (selector) => row.querySelector(selector)];
  const facts = [plural(index.passages, "passage")];
  if (index.documents) facts.push(plural(index.documents, "document"));
  if (index.bytes) facts.push(bytes(index.bytes));
  row.dataset.status = status;
  part("input").checked = (state.chosen ?? new Set(state.usual)).has(name);
  const progress = total ? `${step}, ${done} of ${total}` : step;
  part(".facts").textContent = building ? progress : facts.join(" · ");
  part("progress").hidden = !building;
  part("progress").removeAttribute("value");
  if (total) fill(part("progress"), { max: total, value: done }, []);
  [part(".error").textContent, part(".error").hidden] = [error ?? "", !error];
  part(".skipped").hidden = !skipped.length;
  part("summary").textContent = `${plural(skipped.length, "file")} left out`;
  part("ul").replaceChildren(...skipped.map(({ file, reason }) =>
    make("li", {}, make("b", {}, file), ` ${reason}`)));
}

async function watch(name) {
  if (state.watched.has(name)) return;
  state.watched.add(name);
  try {
    for (let status = "building"; status === "building";) {
      await pause(POLL_MS);
      const index = await call(`/v1/indexes/${encodeURIComponent(name)}`);
      ({ status } = index);
      state.indexes = state.indexes.map((other) => other.name === name ? index : other);
      showIndexes();
    }
  } catch (failure) {
    if (failure.status !== 404) tell("indexes-error", failure); // deleted meanwhile
  } finally {
    state.watched.delete(name);
  }
}

async function deleteIndex(name) {
  try {
    await call(`/v1/indexes/${encodeURIComponent(name)}`, { method: "DELETE" });
    choose(name, false);
    $("close-documents").focus();
    await readIndexes();
  } catch (failure) {
    tell("indexes-error", failure);
  }
}

function takeDocuments(documents) {
  state.documents = documents;
  $("send-documents").disabled = !documents.length;
  if (!documents.length) return;
  const size = documents.reduce((sum, { file }) => sum + file.size, 0);
  $("chosen").textContent = `${plural(documents.length, "file")}, ${bytes(size)}`;
  const [folder] = documents[0].path.toLowerCase().split(/[/.]/);
  $("index-name").value ||= folder.replace(/[^a-z0-9_-]+/g, "-").replace(/^[-_]+|[-_]+$/g, "").slice(0, 64);
}

// Files that were dropped, also those in folders, however deep
async function dropped(transfer) {
  const plain = [...transfer.files].map((file) => ({ file, path: file.name }));
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
  const inside = async (entry) => {
    if (entry.isFile) {
      const file = await new Promise((resolve, reject) => { entry.file(resolve, reject); });
      return [{ file, path: entry.fullPath.slice(1) }];
    }
    const [reader, all] = [entry.createReader(), []];
    for (;;) { // a hundred at a time
      const some = await new Promise((resolve, reject) => { reader.readEntries(resolve, reject); });
      if (!some.length) return all;
      for (const one of some) all.push(...await inside(one));
    }
  };
  return entries.length ? (await Promise.all(entries.map(inside))).flat() : plain;
}

function upload() {
  const name = $("index-name").value.trim();
  tell("upload-error", null);
  if (!/^[a-z0-9][a-z0-9_-]{0,63}$/.test(name)) {
    tell("upload-error", "Give a name of small letters, digits, - and _, such as notes.");
    $("index-name").focus();
    return;
  }
  const sent = new FormData();
  sent.append("name", name);
  for (const { file, path } of state.documents) sent.append("files", file, path);
  const request = new XMLHttpRequest(); // fetch does not tell how much has been sent
  request.open("POST", "/v1/indexes");
  request.setRequestHeader("Accept", "application/json");
  request.responseType = "json";
  request.upload.onprogress = ({ loaded, total }) => {
    $("upload-progress").value = loaded / total;
    $("upload-text").textContent = `${percent(loaded / total)} sent`;
  };
  request.onerror = () => tell("upload-error", unreachable());
  request.onload = () => {
    if (request.status !== 202) {
      tell("upload-error", new Failure(request.status, request.response));
      return;
    }
    state.indexes = [...state.indexes.filter((index) => index.name !== name), request.response];
    choose(name, true);
    watch(name);
    takeDocuments([]);
    $("chosen").textContent = `${name} is searched as soon as it is built. Drop more files or a folder here.`;
    for (const id of ["index-name", "files", "folder"]) $(id).value = "";
  };
  request.onloadend = () => {
    hide(true, "upload-state");
    $("send-documents").disabled = !state.documents.length;
  };
  hide(false, "upload-state");
  $("send-documents").disabled = true;
  request.send(sent);
}

function openDocuments() {
  if (!$("documents").open) $("documents").showModal();
  readIndexes();
}

// ---- Start

function listenForFiles() {
  for (const id of ["photo", "camera"]) {
    $(id).addEventListener("change", ({ target }) => {
      if (target.files[0]) takePhoto(target.files[0]);
      target.value = ""; // the same photo may be chosen again
    });
  }
  for (const id of ["files", "folder"]) {
    $(id).addEventListener("change", ({ target }) => takeDocuments([...target.files].map((file) =>
      ({ file, path: file.webkitRelativePath || file.name }))));
  }
  document.addEventListener("paste", ({ clipboardData }) => {
    const file = [...clipboardData.files].find(({ type }) => type.startsWith("image/"));
    if (file) takePhoto(file);
  });
  const dragging = (event, yes) => { // text may be dragged into a field as ever
    const files = event.dataTransfer.types.includes("Files");
    if (files) event.preventDefault();
    document.body.classList.toggle("dragging", files && yes);
  };
  document.addEventListener("dragover", (event) => dragging(event, true));
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) dragging(event, false); });
  document.addEventListener("drop", async (event) => {
    dragging(event, false);
    const [first] = event.dataTransfer.files;
    if (!$("documents").open && first?.type.startsWith("image/")) {
      takePhoto(first);
    } else if (first) {
      const documents = dropped(event.dataTransfer); // at once: the browser forgets them
      openDocuments();
      takeDocuments(await documents);
    }
  });
}

function start() {
  const listen = (id, event, heard) => $(id).addEventListener(event, heard);
  listenForFiles();
  listen("no-photo", "click", () => { state.photo = null; clearResult(); $("photo").focus(); });
  listen("form", "submit", (event) => { event.preventDefault(); ask(); });
  for (const name of ["tokens", "passages", "threshold"]) {
    listen(name, "input", () => { state.settings[name] = Number($(name).value); settingsChanged(); });
  }
  listen("fast", "change", () => { state.settings.fast = $("fast").checked; settingsChanged(); });
  listen("reset", "click", () => { state.settings = { ...AUTOMATIC }; settingsChanged(); });
  listen("view", "change", () => { $("frame").dataset.view = $("view").value; });
  listen("compare", "click", compare);
  listen("clear-history", "click", clearHistory);
  for (const id of ["open-documents", "choose-documents"]) listen(id, "click", openDocuments);
  listen("close-documents", "click", () => $("documents").close());
  listen("upload", "submit", (event) => { event.preventDefault(); upload(); });
  for (const event of ["pointerover", "focusin"]) listen("stage", event, ({ target }) => light(target));
  listen("stage", "pointerleave", () => light(document.activeElement));
  listen("stage", "focusout", () => light(null));
  document.addEventListener("keydown", ({ key }) => { if (key === "Escape") light(null); });
  window.addEventListener("scroll", drawSoon, { passive: true });
  window.addEventListener("hashchange", readLink);
  const sizes = new ResizeObserver(drawSoon);
  for (const id of ["stage", "frame", "see", "tell"]) sizes.observe($(id));
  $("settings").open = matchMedia("(min-width: 901px)").matches;
  showExamples();
  showSettings();
  restore();
  readLink();
  readIndexes();
  health().then((status) => { if (status === "loading") untilReady(); });
}

start();
