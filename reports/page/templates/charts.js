// The table of best estimators, and the charts of the chosen problem. Data and the library are unpacked once, when the page opens.
const infinite = { "∞": Infinity, "−∞": -Infinity };
function rowsOf(columns) {
  const count = columns.length ? (columns[0].codes || columns[0].numbers).length : 0;
  return Array.from({ length: count }, (_, row) => Object.fromEntries(columns.map(column =>
    [column.name, column.words ? column.words[column.codes[row]] : infinite[column.numbers[row]] ?? column.numbers[row]])));
}

// Numbers are shown with three digits and their units.
const superscript = power => String(power).replace(/[-0-9]/g, letter => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(letter)]);
function shownNumber(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (Math.abs(value) < 1e-12) return "0";
  const power = Math.floor(Math.log10(Math.abs(value)));
  if (power >= -3 && power < 6) return String(Number(value.toPrecision(3))).replace("-", "−");
  return `${Number((value / 10 ** power).toPrecision(3))}·10${superscript(power)}`;
}
const bounded = (value, low, high) => low === null || high === null || low === high ? shownNumber(value) : `${shownNumber(value)} [${shownNumber(low)}, ${shownNumber(high)}]`;
function withUnit(value, steps) {
  if (value === null || value === undefined) return "–";
  const [factor, unit] = steps.find(([size]) => value >= size) || steps.at(-1);
  return `${shownNumber(value / factor)} ${unit}`;
}
const bytes = value => withUnit(value, [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]]);
const percent = value => `${Number((100 * value).toPrecision(2))} %`;
const whole = value => value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
const biasOf = cell => cell.bias_bound !== null ? `|bias| < ${percent(cell.bias_bound)}` : cell.verdict === "unbiased-exact" ? "0 (exact)" : bounded(cell.bias, cell.bias_low, cell.bias_high);

const QUESTIONS = JSON.parse($("#questions")?.textContent ?? "{}");
const SPECS = {};
const COSTS = {
  estimates: { label: "number N of averaged estimates", of: () => 1 },
  seconds: { label: "time (µs)", of: cell => cell.seconds === null ? null : 1e6 * cell.seconds },
  evaluations: { label: "loss evaluations (a backward counts as two)", of: cell => cell.evaluations },
};
const GLYPHS = { circle: "●", square: "■", "triangle-up": "▲", diamond: "◆", cross: "✚", "triangle-down": "▼", "triangle-right": "▶", "triangle-left": "◀" };
const BY_LEVEL = { rho: "ρ of one estimate", cosine: "cosine", gain: "gain", bias: "relative bias", orthogonal: "orthogonal bias", variance: "relative variance", mse: "relative MSE" };
const metricOf = (cell, name) => bounded(cell[name], cell[`${name}_low`], cell[`${name}_high`]);
// A name with options, which may break after a bracket or a comma rather than in a word.
const breakable = name => name.split(/(?<=[[,])/).flatMap((part, place) => place ? [make("wbr"), part] : [part]);
const levelName = stage => stage.startsWith("h=") ? `entropy ${stage}` : stage;
const baseOf = cell => [`, ${cell.loss}`, `@${cell.loss}`].reduce((name, end) => name.endsWith(end) ? name.slice(0, -end.length) : name, cell.problem);

// Names next to the marks of a chart, by Vega's own placement of labels; a name that finds no room is left out.
function named(vega, ink) {
  const marks = vega.marks.map(mark => mark.name).filter(Boolean);
  const opacity = { signal: "picked == '' || datum.datum.estimator == picked ? 1 : 0.2" };
  const text = { text: { field: "datum.estimator" }, fill: { value: ink }, fontSize: { value: 11 }, font: { value: getComputedStyle(document.body).fontFamily }, fillOpacity: opacity };
  const near = ["right", "top-right", "bottom-right", "left", "top", "bottom", "top-left", "bottom-left"], far = ["top", "top-right", "top-left", "bottom-right"];
  const anchor = [...near, ...far, ...far], offset = [...near.map(() => 5), ...far.map(() => 17), ...far.map(() => 29)];
  const place = { type: "label", size: { signal: "[max(width, 200), height]" }, anchor, offset, padding: 0, avoidMarks: marks.slice(0, -1) };
  vega.marks.push({ type: "text", from: { data: marks.at(-1) }, encode: { enter: text, update: { fillOpacity: opacity } }, transform: [place] });
  return vega;
}

const explained = name => $$("#estimators + dl dt").find(term => term.textContent === name)?.nextElementSibling;

class Explorer {
  constructor(data) {
    this.cells = data.cells;
    this.standings = data.standings;
    this.sweeps = data.sweeps;
    this.views = {};
    this.picked = "";
    this.at = new Map(this.cells.map(cell => [[cell.problem, cell.stage, cell.estimator].join("\n"), cell]));
    this.places = new Map();
    for (const cell of this.cells) {
      const base = baseOf(cell);
      if (!this.places.has(base)) this.places.set(base, new Map());
      const losses = this.places.get(base);
      if (!losses.has(cell.loss)) losses.set(cell.loss, { problem: cell.problem, first: cell, stages: [] });
      const place = losses.get(cell.loss);
      if (!place.stages.includes(cell.stage)) place.stages.push(cell.stage);
    }
    this.stages = [...new Set(this.cells.map(cell => cell.stage))];
    this.pickers();
  }

  // The loss that is chosen at first: shared by all structures, and with the most estimators; "" where no loss is shared.
  usualLoss(losses) {
    const contenders = loss => new Set(this.cells.filter(cell => cell.loss === loss).map(cell => cell.estimator)).size;
    const shared = losses.filter(loss => [...this.places.values()].every(found => found.has(loss)));
    return shared.reduce((best, loss) => best && contenders(best) > contenders(loss) ? best : loss, "");
  }
  pickers() {
    const losses = [...new Set(this.cells.map(cell => cell.loss))];
    const known = new Set(this.standings.map(row => row.question));
    const budgets = [...new Set(this.standings.map(row => row.budget))];
    const timed = Boolean(QUESTIONS.unbiased?.unit);
    const offer = (select, pairs, chosen) => {
      select.replaceChildren(...pairs.map(([value, text]) => make("option", { value, textContent: text })));
      if (pairs.length) select.value = (pairs.find(([value]) => String(value) === String(chosen)) || pairs[0])[0];
    };
    offer($("#pick-question"), Object.entries(QUESTIONS).filter(([name]) => known.has(name)).map(([name, one]) => [name, one.asks]), "gradients");
    offer($("#pick-loss"), [...losses.map(loss => [loss, loss]), ["", "all"]], this.usualLoss(losses));
    offer($("#pick-budget"), budgets.map(budget => [budget, `${timed ? "the time of " : ""}${budget} ${timed ? "REINFORCE " : ""}estimate${budget === 1 ? "" : "s"}`]), 16);
    offer($("#pick-problem"), [...this.places.keys()].map(base => [base, base]), [...this.places.keys()][0]);
    offer($("#pick-cost"), Object.entries(COSTS).filter(([, cost]) => this.cells.some(cell => cost.of(cell) !== null)).map(([name, cost]) => [name, cost.label]), "estimates");
    offer($("#pick-metric"), Object.entries(BY_LEVEL).filter(([name]) => this.cells.some(cell => cell[name] !== null)), "rho");
    for (const name of ["question", "loss", "budget", "problem", "cost", "metric"]) kept(name, $(`#pick-${name}`));
    this.stagesOffered();
    kept("level", $("#pick-level"));
    this.picked = state.get("estimator") ?? "";
    const all = () => { this.matrix(); this.closer(); };
    for (const name of ["question", "loss", "budget"]) $(`#pick-${name}`).addEventListener("input", all);
    $("#pick-problem").addEventListener("input", () => { this.stagesOffered(); this.closer(); });
    $("#pick-level").addEventListener("input", () => this.closer());
    $("#pick-metric").addEventListener("input", () => this.draw("levels"));
    $("#pick-cost").addEventListener("input", () => this.draw("error"));
    $("#pick-sweep").addEventListener("input", () => this.draw("sweep"));
    $$("[data-unready]").forEach(part => { part.hidden = false; });
    this.offer = offer;
    all();
  }

  get question() { return $("#pick-question").value; }
  get budget() { return Number($("#pick-budget").value); }
  get stage() { return $("#pick-level").value; }
  placesOf(base) {
    const losses = this.places.get(base), chosen = $("#pick-loss").value;
    return (chosen ? [losses?.get(chosen)] : [...losses?.values() ?? []]).filter(Boolean);
  }
  placeOf(base) {
    const places = this.placesOf(base);
    return places.find(place => place.first.loss === this.lossHere) ?? places[0];
  }
  get problem() {
    const base = $("#pick-problem").value;
    return (this.placeOf(base) || this.places.get(base)?.values().next().value)?.problem;
  }
  stagesOffered() {
    const place = this.placeOf($("#pick-problem").value) || this.places.get($("#pick-problem").value)?.values().next().value;
    const select = $("#pick-level"), before = select.value;
    select.replaceChildren(...(place?.stages || []).map(stage => make("option", { value: stage, textContent: stage })));
    if (place?.stages.includes(before)) select.value = before;
  }
  standing(problem, stage) {
    const lower = QUESTIONS[this.question]?.lower;
    return this.standings
      .filter(row => row.problem === problem && row.stage === stage && row.question === this.question && row.budget === this.budget)
      .sort((a, b) => (a.standing !== "best") - (b.standing !== "best") || (lower ? a.score - b.score : b.score - a.score));
  }

  // Problems by entropy levels, the best estimator in every cell.
  matrix() {
    const table = $("#matrix");
    table.tHead.replaceChildren(make("tr", {}, make("th", { scope: "col", textContent: "structure and loss" }), ...this.stages.map(stage => make("th", { scope: "col", textContent: levelName(stage) }))));
    table.tBodies[0].replaceChildren(...[...this.places.keys()].flatMap(base => this.placesOf(base).map(place => this.row(base, place))));
    const asked = QUESTIONS[this.question];
    $("#matrix-note").textContent = asked ? `Each cell shows the best estimator by ${asked.criterion}${asked.budgeted ? `, at equal budget: ${$("#pick-budget").selectedOptions[0].textContent}` : ""}. Brackets are 95 % intervals over instances. ${asked.meaning}${this.stages.some(stage => stage.startsWith("h=")) ? " The entropy level h is the entropy of p(z), divided by its maximum: near 1 early in training, near 0 late." : ""}${$("#pick-loss").options.length > 2 && $("#pick-loss").value ? " Choose another loss above." : ""}` : "";
  }
  row(base, place) {
    const { oracle, structures, loss, n } = place.first;
    const size = [n, structures ? `${shownNumber(structures)} structures` : ""].filter(Boolean).join(", ");
    const head = make("th", { scope: "row" }, make("b", { textContent: base }), make("small", { textContent: [oracle, size].filter(Boolean).join(", ") }), make("small", { textContent: `loss: ${loss}` }));
    return make("tr", {}, head, ...this.stages.map(stage => this.answer(base, place, stage)));
  }
  answer(base, { problem, first: { loss } }, stage) {
    const [best, ...rest] = this.standing(problem, stage);
    const cell = make("td", {});
    cell.dataset.level = levelName(stage);
    if (!best) { cell.textContent = "not measured"; cell.className = "soft"; return cell; }
    const tied = rest.filter(row => row.standing === "tied");
    const facts = this.at.get([problem, stage, best.estimator].join("\n")) || {};
    const { label, unit } = QUESTIONS[this.question];
    const none = { unclear: "none clearly best", useless: "none useful" }[best.outcome] ?? "";
    const names = (none ? [best, ...tied] : tied).map(row => row.estimator), listed = names.slice(0, 3).join(", ") + (names.length > 3 ? ` and ${names.length - 3} more` : "");
    const others = none === "none useful" ? `best: ${best.estimator}` : none ? `${tied.length ? "not significantly different" : "only candidate"}: ${listed}` : tied.length ? `tied with ${listed}` : rest.length ? `better than all ${rest.length} others` : "no other candidate";
    const button = make("button", { type: "button", className: `best ${none ? "many" : tied.length ? "few" : "sure"}` },
      make("b", {}, ...breakable(none || best.estimator)), make("span", { textContent: `${label} ${bounded(best.score, best.low, best.high)}${unit}` }),
      make("span", { textContent: others }),
      make("small", { textContent: `${best.instances} instance${best.instances === 1 ? "" : "s"}, ${facts.replicates ? `${whole(facts.replicates)} replicates` : "exact"}` }));
    button.style.setProperty("--hue", none ? "var(--soft)" : facts.colour);
    button.title = explained(best.estimator)?.textContent ?? "";
    button.addEventListener("click", () => {
      $("#pick-problem").value = base;
      this.lossHere = loss;
      this.stagesOffered();
      $("#pick-level").value = stage;
      keep("problem", base);
      keep("level", stage);
      this.closer();
      this.pick(best.estimator);
      $("#closer").scrollIntoView();
    });
    cell.append(button);
    return cell;
  }

  // One problem at one entropy level.
  get here() { return this.cells.filter(cell => cell.problem === this.problem && cell.stage === this.stage); }
  told(cell) {
    return { estimator: cell.estimator, colour: cell.colour, shape: cell.shape, problem: baseOf(cell), level: cell.stage, loss: cell.loss, n: whole(cell.instances), replicates: whole(cell.replicates), seed: cell.seed };
  }
  closer() {
    const first = this.here[0];
    $("#where").textContent = first ? `${[baseOf(first), first.oracle, first.n].filter(Boolean).join(", ")}, ${shownNumber(first.structures)} structures; entropy level ${first.stage}; loss ${first.loss}; ${whole(first.instances)} instances.` : "";
    const ordered = this.ranked(), names = [...new Set([...ordered.map(row => row.estimator), ...this.here.map(cell => cell.estimator)])];
    $("#legend").replaceChildren(...names.map(name => {
      const button = make("button", { type: "button" }, make("i", { textContent: GLYPHS[this.here.find(cell => cell.estimator === name)?.shape] ?? "●", ariaHidden: "true" }), name);
      button.dataset.estimator = name;
      button.style.setProperty("--hue", this.here.find(cell => cell.estimator === name)?.colour);
      button.setAttribute("aria-pressed", name === this.picked);
      button.addEventListener("mouseenter", () => this.highlight(name));
      button.addEventListener("mouseleave", () => this.highlight(this.picked));
      button.addEventListener("click", () => this.pick(this.picked === name ? "" : name));
      return button;
    }));
    const sweeps = [...new Set(this.sweeps.filter(row => row.problem === this.problem && row.stage === this.stage).map(row => `${row.metric}, by ${row.axis}`))];
    const before = $("#pick-sweep").value;
    this.offer($("#pick-sweep"), sweeps.map(name => [name, name]), before);
    $("#sweep-part").hidden = !sweeps.length;
    if (!names.includes(this.picked)) this.picked = "";
    for (const name of ["ranking", "plane", "cosine", "levels", "error", "sweep"]) this.draw(name);
    this.panel();
  }
  ranked() { return this.standing(this.problem, this.stage); }
  ranking() {
    const asked = QUESTIONS[this.question], positive = asked?.lower && this.ranked().every(row => row.low > 0);
    const score = asked ? `${asked.label}${asked.unit && ` (${asked.unit.trim()})`}${asked.budgeted ? ` for ${$("#pick-budget").selectedOptions[0].textContent}` : ""}` : "";
    const words = { best: "best", tied: "not significantly worse than the best", behind: "significantly worse than the best" };
    const rows = this.ranked().map(row => {
      const cell = this.at.get([row.problem, row.stage, row.estimator].join("\n"));
      return cell && { ...this.told(cell), n: row.instances, score: row.score, low: row.low ?? row.score, high: row.high ?? row.score, shown: bounded(row.score, row.low, row.high), standing: words[row.standing] };
    }).filter(Boolean);
    return [positive ? "ranking-log" : "ranking-linear", rows, { "@axis": [score, asked?.lower ? "lower is better" : "higher is better"], "@score": score, "@standing": "compared with the best" }];
  }
  // Directions of means; the exact gradient has a cosine of 1.
  cosine() {
    const rows = this.here.filter(cell => !cell.reference && cell.cosine !== null).sort((a, b) => b.cosine - a.cosine)
      .map(cell => ({ ...this.told(cell), score: cell.cosine, low: cell.cosine_low, high: cell.cosine_high, shown: metricOf(cell, "cosine"), standing: `gain ${metricOf(cell, "gain")}, orthogonal bias ${metricOf(cell, "orthogonal")}` }));
    return ["ranking-linear", rows, { "@axis": ["cosine of E ĝ and g", "higher is better"], "@score": "cosine", "@standing": "scale" }];
  }
  levels() {
    const name = $("#pick-metric").value;
    const rows = this.cells.filter(cell => cell.problem === this.problem && !cell.reference && cell[name] !== null && Number.isFinite(cell[name]))
      .map(cell => ({ ...this.told(cell), value: cell[name], shown: metricOf(cell, name) }));
    return ["levels", new Set(rows.map(row => row.level)).size > 1 ? rows : [], { "@levels": "entropy level, from early to late in training", "@metric": BY_LEVEL[name] ?? "" }];
  }
  plane() {
    const known = this.here.filter(cell => cell.bias !== null && cell.variance !== null && Number.isFinite(cell.bias) && Number.isFinite(cell.variance));
    const tiny = 1e-12, sided = cell => cell.bias_bound ?? cell.bias;
    const floor = values => { const some = values.filter(value => value > tiny); return some.length ? 10 ** (Math.floor(Math.log10(Math.min(...some))) - 1) : 1e-3; };
    const xzero = floor(known.flatMap(cell => cell.bias_bound === null ? [cell.bias, cell.bias_low] : [cell.bias_bound]));
    const yzero = floor(known.flatMap(cell => [cell.variance, cell.variance_low]));
    const up = (value, zero) => value > tiny ? Math.max(value, zero) : zero;
    const rows = known.map(cell => ({
      ...this.told(cell), x: up(sided(cell), xzero), y: up(cell.variance, yzero),
      x_low: up(cell.bias_bound ?? cell.bias_low, xzero), x_high: up(cell.bias_bound ?? cell.bias_high, xzero), y_low: up(cell.variance_low, yzero), y_high: up(cell.variance_high, yzero),
      bound: cell.bias_bound !== null, bias_shown: biasOf(cell), verdict: cell.verdict || "not tested",
      ...Object.fromEntries(["gain", "orthogonal", "cosine", "variance", "mse"].map(name => [`${name}_shown`, metricOf(cell, name)])),
    }));
    return ["plane", rows, {}, { xzero, yzero }];
  }
  error() {
    const cost = COSTS[$("#pick-cost").value];
    const known = cost ? this.here.filter(cell => !cell.reference && cost.of(cell) > 0 && cell.bias !== null && cell.variance !== null && Number.isFinite(cell.bias + cell.variance) && cell.bias + cell.variance > 1e-12) : [];
    const rows = known.flatMap(cell => [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3].map(power => {
      const count = 10 ** power, of = (bias, variance) => Math.max(bias ** 2 + Math.max(variance, 0) / count, 1e-12);
      const error = of(cell.bias, cell.variance), low = of(cell.bias_low, cell.variance_low), high = of(cell.bias_high, cell.variance_high);
      return { ...this.told(cell), cost: cost.of(cell) * count, error, low, high, estimates: Number(count.toPrecision(3)), shown: bounded(error, low, high), cost_shown: shownNumber(cost.of(cell) * count) };
    }));
    return ["error", rows, { "@cost": cost?.label ?? "", "@error": "relative MSE, lower is better" }];
  }
  sweep() {
    const [metric, axis] = $("#pick-sweep").value.split(", by ");
    const rows = this.sweeps.filter(row => row.problem === this.problem && row.stage === this.stage && row.metric === metric && row.axis === axis && row.median !== null)
      .map(row => ({ ...row, ...this.told(this.at.get([row.problem, row.stage, row.estimator].join("\n")) || { ...row, loss: "", seed: "" }), n: row.instances, shown: bounded(row.median, row.lower, row.upper) }));
    const kind = name => rows.length && rows.every(row => row[name] > 0) ? "log" : "linear";
    return [`sweep-${kind("size")}-${rows.every(row => row.lower > 0) ? kind("median") : "linear"}`, rows, { "@metric": metric ?? "", "@axis": axis ?? "" }];
  }
  async draw(name) {
    const [kind, rows, words, params = {}] = this[name]();
    const place = $(`#chart-${name}`);
    $(`#empty-${name}`).hidden = rows.length > 0;
    place.hidden = !rows.length;
    if (name === "levels") place.closest("figure").hidden = !rows.length && this.stages.length < 2;
    if (!rows.length) return;
    const spec = JSON.parse(Object.entries(words).reduce((text, [key, word]) => text.replaceAll(`"${key}"`, JSON.stringify(word)), JSON.stringify(SPECS[kind])));
    if (kind.startsWith("ranking")) spec.height = 20 * rows.length;
    spec.data = { name: "rows", values: rows };
    spec.params = spec.params.map(param => param.name in params ? { ...param, value: params[param.name] } : param.name === "picked" ? { ...param, value: this.picked } : param);
    spec.config = { ...look(), axisX: { titleAnchor: "end" } };
    const result = await vegaEmbed(place, spec, { mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false, patch: vega => name === "plane" ? named(vega, spec.config.axis.labelColor) : vega });
    this.views[name]?.finalize();
    this.views[name] = result.view;
    result.view.addEventListener("click", (event, item) => { if (item?.datum?.estimator) this.pick(item.datum.estimator); });
    described($("svg", place), `${place.dataset.title}: ${rows.length} marks; the table of this problem has their numbers`);
    place.dataset.marks = rows.length;
  }
  highlight(name) {
    for (const view of Object.values(this.views)) view.signal("picked", name).runAsync();
  }
  pick(name) {
    this.picked = name;
    keep("estimator", name);
    for (const button of $$("#legend button")) button.setAttribute("aria-pressed", button.dataset.estimator === name);
    this.highlight(name);
    this.panel();
  }

  // The picked estimator: its numbers and its row.
  panel() {
    const cell = this.here.find(one => one.estimator === this.picked), panel = $("#chosen");
    if (!cell) { panel.replaceChildren(make("p", { className: "soft", textContent: "Choose a mark or a name to see its numbers and its row in the table." })); return; }
    const scale = (1 - cell.gain) ** 2 / cell.bias ** 2;
    const share = cell.verdict === "biased" && Number.isFinite(scale) ? `, ${percent(Math.min(scale, 1))} of b² is scale: (1 − gain)² / b²` : "";
    const micro = side => cell[side] === null ? null : 1e6 * cell[side];
    const facts = [["relative bias b", biasOf(cell) + share], ...["gain", "cosine", "orthogonal", "variance", "mse", "rho"].map(name => [BY_LEVEL[name], metricOf(cell, name)]),
      ["time of one estimate (µs)", bounded(micro("seconds"), micro("seconds_low"), micro("seconds_high"))], ["peak memory of a batch of 32", bytes(cell.bytes)], ["loss evaluations", shownNumber(cell.evaluations)], ["measured on", `${whole(cell.instances)} instances, ${cell.replicates ? `${whole(cell.replicates)} replicates` : "exact"}, seed ${cell.seed}`]];
    const list = make("dl", {}, ...facts.flatMap(([key, value]) => [make("dt", { textContent: key }), make("dd", { textContent: value })]));
    const link = make("button", { type: "button", textContent: "Go to its row" });
    link.addEventListener("click", () => this.reveal(cell));
    panel.replaceChildren(make("h3", { textContent: `${cell.estimator} on ${baseOf(cell)}, ${cell.stage}` }), make("p", { innerHTML: explained(cell.estimator)?.innerHTML ?? "" }), list, ...(this.tableOf(cell) ? [make("p", {}, link)] : []));
  }
  tableOf(cell) {
    return document.getElementById(`problem-${cell.problem}`);
  }
  async reveal(cell) {
    const table = this.tableOf(cell);
    await filled(table);
    const row = [...table.tBodies[0].rows].find(row => row.cells[0].textContent.trim() === cell.estimator && row.cells[1].textContent.trim() === cell.stage);
    if (!row) return;
    if ($("#panels")) showPanel(cell.problem);
    for (let part = row.parentElement; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
    $$("tr.found").forEach(one => one.classList.remove("found"));
    row.hidden = false;
    row.classList.add("found");
    row.tabIndex = -1;
    row.scrollIntoView({ block: "center" });
    row.focus({ preventScroll: true });
  }
}

// Charts of training: a panel per task, with a legend by which estimators are chosen.
async function drawTraining(data) {
  for (const place of $$(".trained")) {
    const spec = structuredClone(SPECS[place.id]), room = place.clientWidth, narrow = room < 640;
    spec.datasets = { [place.id]: data[place.id] };
    if (spec.facet) spec.columns = Math.max(1, Math.floor((room - (narrow ? 0 : 200)) / 320));
    else spec.width = Math.min(spec.width, room - (narrow ? 90 : 320));
    const legend = narrow ? { orient: "bottom", columns: 2 } : { orient: "right", columns: 1 };
    const result = await vegaEmbed(place, spec, { mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false, config: { ...look(), legend: { ...look().legend, ...legend } } });
    place.view?.finalize();
    place.view = result.view;
    described($("svg", place), `${place.dataset.title}: ${data[place.id].length} points; the tables above have the final numbers`);
    place.dataset.marks = data[place.id].length;
  }
}
function look() {
  const style = getComputedStyle(document.documentElement), colour = key => style.getPropertyValue(`--${key}`).trim();
  const axis = { labelColor: colour("ink"), titleColor: colour("ink"), gridColor: colour("line"), domainColor: colour("soft"), tickColor: colour("soft"), labelOverlap: "greedy", gridOpacity: 0.7, labelFontSize: 12, titleFontSize: 12.5, titleFontWeight: 600 };
  const words = { labelColor: colour("ink"), titleColor: colour("ink") };
  return { background: "transparent", view: { stroke: null }, axis, rule: { color: colour("ink") }, legend: words, header: words, font: getComputedStyle(document.body).fontFamily };
}
function described(svg, label) {
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  $$("[aria-label], [role], [tabindex]", svg).forEach(part => ["aria-label", "role", "aria-roledescription", "tabindex", "aria-hidden"].forEach(key => part.removeAttribute(key)));
}

(async () => {
  if (!$("#vega")) return watch();
  try {
    const packed = JSON.parse(await inflated($("#marks").textContent, "deflate"));
    Object.assign(SPECS, JSON.parse(await inflated($("#specs").textContent, "deflate")));
    const library = make("script", { textContent: await inflated($("#vega").textContent, "gzip") });
    library.type = "module";
    await new Promise(done => { addEventListener("structgrad-drawn", done, { once: true }); library.textContent += "\ndispatchEvent(new Event('structgrad-drawn'));"; document.head.append(library); });
    const data = Object.fromEntries(Object.entries(packed).map(([name, columns]) => [name, rowsOf(columns)]));
    const explorer = $("#matrix") && new Explorer(data);
    const redraw = () => { explorer?.closer(); drawTraining(data); };
    await drawTraining(data);
    document.addEventListener("structgrad-theme", redraw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    document.documentElement.dataset.charts = "ready";
    if (state.has("section")) document.getElementById(state.get("section"))?.scrollIntoView();
  } catch (error) {
    ($("#matrix-note") ?? $("#learning + *")).textContent = `This browser cannot draw the charts (${error}); the tables below have all their numbers.`;
  }
  watch();
})();
