"use strict";
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// Choices are kept in the address, so that a link shows the same rows and charts.
const state = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
function keep(key, value) {
  if (value) state.set(key, value); else state.delete(key);
  history.replaceState(null, "", `#${state}`);
}
function kept(key, field) {
  if (state.has(key) && (field.tagName !== "SELECT" || [...field.options].some(option => option.value === state.get(key)))) field.value = state.get(key);
  field.addEventListener("input", () => keep(key, field.value));
}
addEventListener("hashchange", () => { if (location.hash.includes("=") && location.hash !== `#${state}`) location.reload(); });
for (const link of $$(".bar nav a")) link.addEventListener("click", event => {
  event.preventDefault();
  keep("section", link.hash.slice(1));
  $(link.hash).scrollIntoView();
});

// The theme follows the system until the reader chooses.
const themes = ["auto", "light", "dark"];
function remembered() {
  try { return localStorage.getItem("structgrad-theme") || "auto"; } catch { return "auto"; }
}
function choose(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("structgrad-theme", theme); } catch { /* a page from disk may have no storage */ }
  const button = $("#theme");
  button.textContent = `Theme: ${theme}`;
  button.dataset.theme = theme;
  document.dispatchEvent(new Event("structgrad-theme"));
}
$("#theme").hidden = false;
$("#theme").addEventListener("click", () => choose(themes[(themes.indexOf($("#theme").dataset.theme) + 1) % themes.length]));
choose(themes.includes(remembered()) ? remembered() : "auto");

// Sorting: numbers as numbers, missing entries at the end.
const missing = key => key === "" || key === "nan" || key === null || key === undefined;
function numeric(key) {
  return Number(String(key).replace("−", "-").replace("∞", "inf").replace("inf", "Infinity"));
}
function comparison(keys, ascending) {
  const numbers = keys.every(key => missing(key) || !Number.isNaN(numeric(key)));
  const value = key => numbers ? numeric(key) : String(key);
  return (a, b) => {
    if (missing(a) || missing(b)) return missing(a) - missing(b);
    const order = value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0;
    return ascending ? order : -order;
  };
}
function heading(header, sort) {
  const button = make("button", { type: "button", textContent: header.textContent });
  button.addEventListener("click", () => {
    const ascending = header.getAttribute("aria-sort") !== "ascending";
    for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    sort(ascending);
  });
  header.replaceChildren(button);
}
function chooser(title, words, chosen = "") {
  const select = make("select", {}, make("option", { value: "", textContent: "all" }), ...words.map(word => make("option", { value: word, textContent: word })));
  select.value = chosen;
  return [make("label", {}, title, select), select];
}
const wordsOf = input => input.value.toLowerCase().split(/\s+/).filter(Boolean);

// Compressed parts of the page.
async function inflated(text, format) {
  const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream(format))).text();
}

// A table of many rows is filled when it scrolls into view, so that a page of thousands opens as fast as a short one.
const filling = new Map();
function filled(table) {
  if (!filling.has(table)) filling.set(table, fill(table));
  return filling.get(table);
}
async function fill(table) {
  const body = table.tBodies[0];
  if (body.dataset.packed) {
    try {
      body.innerHTML = await inflated(body.dataset.packed, "deflate");
    } catch (error) {
      body.rows[0].cells[0].textContent = `This browser cannot unpack these rows (${error}); results.parquet next to the page has them.`;
      return;
    }
    delete body.dataset.packed;
  }
  dress(table);
}
function dress(table) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((header, column) => heading(header, ascending => {
    const rows = [...body.rows];
    const key = row => row.cells[column].dataset.key ?? row.cells[column].textContent;
    const compare = comparison(rows.map(key), ascending);
    rows.sort((left, right) => compare(key(left), key(right)));
    body.append(...rows);
  }));
  const controls = $(`[data-table="${CSS.escape(table.id)}"]`);
  if (!controls) return;
  const titles = [...table.tHead.rows[0].cells].map(header => header.textContent);
  const word = row => column => row.cells[column].dataset.word ?? ($("b", row.cells[column]) ?? row.cells[column]).textContent;
  const download = make("button", { type: "button", textContent: "Download CSV" });
  download.addEventListener("click", () => saveTable(table.id, titles, [...body.rows].filter(row => !row.hidden).map(row => titles.map((_, column) => row.cells[column].dataset.key ?? row.cells[column].textContent.trim()))));
  controls.hidden = false;
  if (body.rows.length <= 5) { controls.append(download); return; }
  const chosen = JSON.parse(controls.dataset.filters).map(([title, initial]) => {
    const column = titles.indexOf(title);
    const [label, select] = chooser(title, [...new Set([...body.rows].map(row => word(row)(column)))].filter(Boolean), initial);
    kept(`${table.id}.${title}`, select);
    controls.append(label);
    return [column, select];
  });
  const search = make("input", { type: "search", placeholder: "words" });
  kept(`${table.id}.words`, search);
  const count = make("span", { className: "soft" });
  count.setAttribute("aria-live", "polite");
  controls.append(make("label", {}, "filter", search), download, count);
  const filter = () => {
    const words = wordsOf(search);
    let shown = 0;
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !(words.every(some => text.includes(some)) && chosen.every(([column, select]) => !select.value || word(row)(column) === select.value));
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${body.rows.length} rows`;
  };
  for (const input of [search, ...chosen.map(pair => pair[1])]) input.addEventListener("input", filter);
  filter();
}
const inSight = new IntersectionObserver(entries => {
  for (const { target } of entries.filter(entry => entry.isIntersecting)) {
    inSight.unobserve(target);
    filled(target);
  }
}, { rootMargin: "0px 0px 600px 0px" });
const tables = $$("main table:not([data-rows], #matrix)");
for (const table of tables) if (!table.tBodies[0].dataset.packed) filled(table);
// Called when the charts are drawn, or cannot be: before, everything below them is in view.
function watch() {
  for (const table of tables) if (table.tBodies[0].dataset.packed) inSight.observe(table);
}

// One problem at a time.
function showPanel(problem) {
  for (const panel of $$(".panel")) panel.hidden = panel.dataset.problem !== problem;
  $("#pick-panel").value = problem;
}
if ($("#panels")) {
  $("#panels").hidden = false;
  kept("table", $("#pick-panel"));
  $("#pick-panel").addEventListener("input", event => showPanel(event.target.value));
  showPanel($("#pick-panel").value);
}

// Copies and downloads are made from the page's own data.
function save(name, text, type) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
function saveTable(name, titles, rows) {
  const quoted = word => /[",\n]/.test(word) ? `"${word.replaceAll('"', '""')}"` : word;
  save(`${name}.csv`, [titles, ...rows].map(line => line.map(quoted).join(",")).join("\n") + "\n", "text/csv");
}
async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const old = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = old; }, 1200);
}
for (const button of $$("[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", () => copy(button, document.getElementById(button.dataset.copy).textContent));
}
for (const button of $$("[data-save]")) {
  button.hidden = false;
  button.addEventListener("click", () => save(button.dataset.name, document.getElementById(button.dataset.save).textContent + "\n", "text/plain"));
}

// The table of all numbers is unpacked when it is opened, and drawn a screenful at a time.
const SCREENFUL = 200;
function explorer(root, sets) {
  const controls = $(".controls", root), table = $("table", root), more = $(".more", root);
  const name = Object.keys(sets);
  const [setLabel, setSelect] = chooser("rows", name, name[0]);
  setSelect.options[0].remove();
  setSelect.value = name[0];
  kept("numbers", setSelect);
  const search = make("input", { type: "search", placeholder: "words" });
  kept("numbers.words", search);
  const count = make("span", { className: "soft" });
  count.setAttribute("aria-live", "polite");
  const download = make("button", { type: "button", textContent: "Download CSV" });
  const text = (column, row) => column.words ? column.words[column.codes[row]] : column.numbers[row] === null ? "" : String(column.numbers[row]);
  let columns = [], chosen = [], found = [], shown = 0;
  const draw = () => {
    const rows = found.slice(shown, shown + SCREENFUL).map(row => make("tr", {}, ...columns.map(column => make("td", { textContent: text(column, row) }))));
    table.tBodies[0].append(...rows);
    shown += rows.length;
    more.hidden = shown >= found.length;
    count.textContent = `${found.length} rows`;
  };
  const redraw = () => { table.tBodies[0].replaceChildren(); shown = 0; draw(); };
  const filter = () => {
    const words = wordsOf(search);
    const picks = chosen.filter(([, select]) => select.value).map(([column, select]) => [column.codes, column.words.indexOf(select.value)]);
    const total = columns.length ? (columns[0].codes || columns[0].numbers).length : 0;
    found = [];
    for (let row = 0; row < total; row++) {
      if (!picks.every(([codes, code]) => codes[row] === code)) continue;
      if (words.length && !words.every(word => columns.some(column => text(column, row).toLowerCase().includes(word)))) continue;
      found.push(row);
    }
    redraw();
  };
  const open = () => {
    columns = sets[setSelect.value];
    table.tHead.replaceChildren(make("tr", {}, ...columns.map(column => {
      const header = make("th", { textContent: column.name, scope: "col" });
      heading(header, ascending => {
        const key = column.words ? row => text(column, row) : row => column.numbers[row];
        const compare = comparison(found.map(key), ascending);
        found.sort((left, right) => compare(key(left), key(right)));
        redraw();
      });
      return header;
    })));
    const offered = columns.filter(column => column.words && column.words.length > 1 && column.words.length <= 120 && !["reason"].includes(column.name));
    chosen = [];
    controls.replaceChildren(setLabel);
    for (const column of offered) {
      const [label, select] = chooser(column.name, column.words.filter(Boolean));
      kept(`numbers.${column.name}`, select);
      select.addEventListener("input", filter);
      controls.append(label);
      chosen.push([column, select]);
    }
    controls.append(make("label", {}, "filter", search), download, count);
    controls.hidden = false;
    filter();
  };
  setSelect.addEventListener("input", open);
  search.addEventListener("input", filter);
  more.addEventListener("click", draw);
  download.addEventListener("click", () => saveTable("structgrad", columns.map(column => column.name), found.map(row => columns.map(column => text(column, row)))));
  open();
}
$("#numbers details").addEventListener("toggle", async event => {
  const details = event.target;
  if (!details.open || details.dataset.ready) return;
  details.dataset.ready = "loading";
  try {
    explorer(details, JSON.parse(await inflated($("#packed").textContent, "deflate")));
    details.dataset.ready = "yes";
  } catch (error) {
    $(".controls", details).replaceChildren(`This browser cannot unpack the numbers (${error}); results.parquet next to the page has them.`);
    $(".controls", details).hidden = false;
    details.dataset.ready = "no";
  }
});

addEventListener("beforeprint", () => $$("main details:not(#numbers details)").forEach(part => { part.open = true; }));
