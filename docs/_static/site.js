// Makes tables sortable, numbers as numbers: sortable/ sorts by data-sort.
const UNITS = { ns: 1e-9, µs: 1e-6, ms: 1e-3, s: 1, kB: 1e3, KB: 1e3, MB: 1e6, GB: 1e9 };
const NUMBER = /^±?([−-]?\d[\d,]*\.?\d*(?:e[+-]?\d+)?)(?:\/(\d+))?\s*([a-zµA-Z]*)/;

function value(text) {
  if (text === "same bits") return 0;
  const found = NUMBER.exec(text);
  if (!found) return null;
  const number = Number(found[1].replaceAll(",", "").replace("−", "-"));
  return (number / (found[2] ?? 1)) * (UNITS[found[3]] ?? 1);
}

function prepare(table) {
  const rows = [...table.tBodies].flatMap((body) => [...body.rows]);
  for (const [column, heading] of [...table.tHead.rows[0].cells].entries()) {
    const cells = rows.map((row) => row.cells[column]).filter(Boolean);
    const values = cells.map((cell) => value(cell.textContent.trim()));
    const texts = cells.filter((cell) => /\w/.test(cell.textContent));
    if (2 * values.filter((v) => v !== null).length <= texts.length) continue;
    heading.classList.add("number");
    cells.forEach((cell, i) => {
      cell.dataset.sort = values[i] ?? ""; // what is no number comes last
      if (values[i] !== null && cell.textContent.length < 16) cell.classList.add("number");
    });
    if (rows.length > 2) table.classList.add("sortable", "n-last");
  }
  fit(table);
}

// Makes cells so wide that two lines hold them. Tables of many columns then scroll; in
// others, long cells give way first if all do not fit.
function fit(table) {
  const cells = [...table.querySelectorAll("th, td:not(.number)")];
  for (const cell of cells) {
    const length = cell.textContent.length;
    const short = cell.matches(".number") && length > 15 ? 0.36 : 0.45;
    const share = length > 60 ? 0.27 : length < 25 ? short : 0.32;
    if (length > 12) cell.style.minWidth = `${Math.min(40, share * length)}em`;
  }
  if (table.tHead.rows[0].cells.length > 6) return;
  const box = table.parentElement;
  for (const longest of [60, 0]) {
    if (box.scrollWidth <= box.clientWidth) return;
    const long = cells.filter((cell) => cell.textContent.length > longest);
    long.forEach((cell) => cell.style.removeProperty("min-width"));
  }
}

document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("article table.docutils").forEach((t) => t.tHead && prepare(t));
});
addEventListener("load", () => {
  for (const img of document.querySelectorAll("article img")) {
    img.classList.toggle("broad", img.naturalWidth > 800);
  }
});
