// Numbers and elements. Text that comes from answers is set as text, never as HTML.
"use strict";
const kernrec = {};

(() => {
  const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]];

  // The factor and prefix in which a value has one to three digits before the point.
  function prefixOf(value) {
    return PREFIXES.find(([scale]) => Math.abs(value) >= scale * 0.9995) ?? PREFIXES.at(-1);
  }

  // 1.23e-5, "s" -> "12.3 µs"
  function human(value, unit) {
    if (value === null || value === undefined) return "–";
    const [scale, prefix] = prefixOf(value);
    return `${Number((value / scale).toPrecision(3))} ${prefix}${unit}`;
  }

  // "10.1 to 15.0", in the unit that the value is written in
  function span(value, low, high) {
    const [scale] = prefixOf(value);
    return [low, high].map((bound) => Number((bound / scale).toPrecision(3))).join(" to ");
  }

  // "12.3 µs (10.1 to 15.0)"
  function interval(value, low, high, unit) {
    return `${human(value, unit)} (${span(value, low, high)})`;
  }

  function percent(fraction, digits = 0) {
    return fraction === null || fraction === undefined ? "–" : `${(100 * fraction).toFixed(digits)} %`;
  }

  // An element with attributes and children; strings become text.
  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value === true) made.setAttribute(name, "");
      else if (value !== false && value !== null) made.setAttribute(name, value);
    }
    made.append(...children.filter((child) => child !== null));
    return made;
  }

  // columns: [head, text (or element) of a row, whether it is text (left) and not a number]
  function table(caption, columns, rows, rowClass = () => "") {
    const head = element("tr", {}, ...columns.map(([name, , left]) =>
      element("th", { scope: "col", class: left ? "text" : "" }, name)));
    const lines = rows.map((row, number) => element("tr", { class: rowClass(row, number) },
      ...columns.map(([, cell, left]) => element("td", { class: left || "" }, cell(row, number)))));
    const made = element("table", {}, element("caption", {}, caption),
      element("thead", {}, head), element("tbody", {}, ...lines));
    // A table that is wider than the window scrolls, with the keyboard, too.
    return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, made);
  }

  function notes(lines) {
    return element("ul", { class: "notes" }, ...lines.map((line) => element("li", {}, line)));
  }

  async function copy(text, button) {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {  // a page from a file, or a browser that asks: the reader can still select the text
      const range = document.createRange();
      range.selectNodeContents(button.parentElement.querySelector("code"));
      const selection = window.getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      button.textContent = document.execCommand("copy") ? "copied" : "selected";
    }
    setTimeout(() => { button.textContent = "copy"; }, 2000);
  }

  function command(text, label) {
    const button = element("button", { class: "copy", type: "button", "aria-label": `Copy the command: ${label}` }, "copy");
    button.addEventListener("click", () => copy(text, button));
    return element("div", { class: "command" }, button, element("code", {}, text));
  }

  Object.assign(kernrec, { prefixOf, human, span, interval, percent, element, table, notes, command });
})();
