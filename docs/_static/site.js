// Makes tables sortable, numbers as numbers: sortable/ sorts by data-sort.
const UNITS = { ns: 1e-9, µs: 1e-6, ms: 1e-3, s: 1, kB: 1e3, KB: 1e3, MB: 1e6, GB: 1e9 };
const NUMBER = /^[±−-]?(\d[\d,]*\.?\d*(?:e[+-]?\d+)?)\s*([a-zµA-Z]*)/;

function value(text) {
  if (text === "same bits") return 0;
  const found = NUMBER.exec(text);
  return found && Number(found[1].replaceAll(",", "")) * (UNITS[found[2]] ?? 1);
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
}

document.addEventListener("DOMContentLoaded", () =>
  document.querySelectorAll("article table.docutils").forEach((t) => t.tHead && prepare(t)),
);
