// The views but their plots: tables and explanations, from answers.
"use strict";
(() => {
  const { element, human, span, interval, percent, table, notes, command } = kernrec;

  // The words of a point: its config, operating point, costs with intervals, bottleneck and source.
  function describe(front, number) {
    const points = front.points;
    const { names, values } = front.configs[points.kernel[number]];
    const pairs = values[points.config[number]].map((value, i) => `${names[i]}=${value}`);
    const point = front.operating_points[points.point[number]];
    const measured = front.measured[number];
    const [source, ofEnergy] = ["source", "energy_source"].map((name) => front.sources[points[name][number]]);
    const locked = point.clock_hz === null ? "" : `, locked at ${human(point.clock_hz, "Hz")}`;
    return {
      kernel: front.kernels[points.kernel[number]],
      config: pairs.join(" "),
      short: front.configs[points.kernel[number]].short[points.config[number]],
      parameter: pairs.join(","),
      point,
      limit: `${point.power_limit_w} W${point.default ? " (default)" : ""}${locked}`,
      latency: interval(points.latency_s[number], points.latency_low_s[number], points.latency_high_s[number], "s"),
      energy: interval(points.energy_j[number], points.energy_low_j[number], points.energy_high_j[number], "J"),
      power: human(points.power_w[number], "W"),
      bottleneck: front.bottlenecks[points.bottleneck[number]],
      source: source === ofEnergy ? source : `${source}, energy ${ofEnergy}`,
      date: measured ? measured.measured_at.slice(0, 10) : "",
    };
  }

  // A cell of two lines: what counts, and below it what says more.
  const twoLines = (first, second) => element("span", { class: "lines" }, first, element("small", {}, second));

  // What the short forms of the configs on a front stand for, a line for each kernel.
  function codes(front) {
    const kernels = [...new Set(front.front.map((n) => front.points.kernel[n]))];
    return element("details", { class: "codes" }, element("summary", {}, "What the short configs stand for"),
      ...kernels.map((k) => element("p", {}, `${front.kernels[k]}: ${front.configs[k].codes.map(([code, names]) => `${code} ${names}`).join("; ")}`)));
  }

  // The columns by importance: a narrow window shows the first, and scrolls to the others.
  function frontTable(front, caption, numbers, onPick, chosen) {
    const words = new Map(numbers.map((n) => [n, describe(front, n)]));
    const points = front.points;
    const cost = (unit, ...names) => (n) => {
      const [value, low, high] = names.map((name) => points[name][n]);
      return twoLines(human(value, unit), span(value, low, high));
    };
    const limit = (n) => {
      const { point } = words.get(n);
      const locked = point.clock_hz === null ? "" : `locked at ${human(point.clock_hz, "Hz")}`;
      return twoLines(`${point.power_limit_w} W`, locked || (point.default ? "default" : ""));
    };
    const source = (n) => twoLines(words.get(n).source, words.get(n).date);
    return table(caption, [
      ["config, kernel", (n) => twoLines(element("button", { type: "button", title: words.get(n).config,
        "aria-label": `Explain ${words.get(n).config} at ${words.get(n).limit}`, onclick: () => onPick(n) }, words.get(n).short),
        words.get(n).kernel), "config text"],
      ["latency", cost("s", "latency_s", "latency_low_s", "latency_high_s")],
      ["energy", cost("J", "energy_j", "energy_low_j", "energy_high_j")], ["power", (n) => words.get(n).power],
      ["limit", limit], ["bottleneck", (n) => words.get(n).bottleneck, "text"], ["source", source, "source text"],
    ], numbers, (n) => (n === chosen ? "chosen" : ""));
  }

  // The baselines of a problem, fastest first.
  function linesTable(front) {
    const known = (line) => line.power_w !== null;
    return table(`Baselines of ${front.problem}, fastest first`, [
      ["backend", (line) => line.name, "text"],
      ["latency", (line) => interval(line.latency_s, ...line.latency_interval_s, "s")],
      ["energy", (line) => (known(line) ? interval(line.energy_j, ...line.energy_interval_j, "J") : "")],
      ["power", (line) => (known(line) ? human(line.power_w, "W") : "")],
      ["source", (line) => line.basis, "text"],
    ], front.baselines);
  }

  // A baseline compared with the fastest config, in a sentence.
  function lineText(line) {
    const drawn = line.power_w === null ? "" : `, ${interval(line.energy_j, ...line.energy_interval_j, "J")}`;
    const much = line.slowdown === null ? "" : ` ${percent(Math.abs(line.slowdown), 1)} ${line.slowdown < 0 ? "less" : "more"} time than the fastest config here`;
    const uncertain = line.faster || (line.slowdown > 0.02 && line.beaten === false);
    const advice = line.advised ? `; run ${line.backend}` : uncertain ? ", within the estimates' error" : "";
    return `${line.name}: ${interval(line.latency_s, ...line.latency_interval_s, "s")}${drawn} (${line.basis})${much ? ";" : ""}${much}${advice}.`;
  }

  function energyTable(explained) {
    const whole = Object.values(explained.energy_by_part_j).reduce((sum, joules) => sum + joules, 0);
    const rows = Object.entries(explained.energy_by_part_j).filter(([, joules]) => joules > 0).sort((a, b) => b[1] - a[1]);
    const bar = (share) => {
      const made = element("span", { class: "bar", "aria-hidden": "true" });
      made.style.width = `${(7 * share).toFixed(2)}em`;
      return made;
    };
    return table("Energy by component, predicted shares", [
      ["component", ([name]) => name, "text"], ["energy", ([, joules]) => human(joules, "J")],
      ["share", ([, joules]) => percent(joules / whole)], ["", ([, joules]) => bar(joules / whole), "text"],
    ], rows);
  }

  function timeTable(launch) {
    const rows = Object.entries(launch.time_s).filter(([, seconds]) => seconds > 0).sort((a, b) => b[1] - a[1]).slice(0, 6);
    return table(`${launch.entry}: ${launch.blocks} blocks of ${launch.threads} threads, occupancy ${percent(launch.occupancy)}`
      + ` (limited by ${launch.capped_by}), ${Number(launch.waves.toPrecision(3))} waves`, [
      ["resource", ([name]) => name, "text"], ["time", ([, seconds]) => human(seconds, "s")],
    ], rows);
  }

  // Fills the box that explains one config; returns the place of its roofline.
  function showExplanation(box, title, explained) {
    const roof = explained.roofline;
    const place = element("div", { class: "plot", role: "img", "aria-label":
      `Roofline: ${Number(roof.intensity.toPrecision(3))} operations per byte, ${human(roof.achieved_flops, "FLOP/s")} of`
      + ` ${human(roof.attainable_flops, "FLOP/s")} attainable` });
    const config = Object.entries(explained.config).map(([name, value]) => `${name}=${value}`).join(" ");
    box.replaceChildren(
      element("h2", {}, `${explained.kernel} on ${title}`),
      element("p", {}, element("code", {}, config)),
      element("p", {}, `Latency ${interval(explained.latency_s, ...explained.latency_interval_s, "s")}, energy `
        + `${interval(explained.energy_j, ...explained.energy_interval_j, "J")}, ${human(explained.power_w, "W")} at a power limit of `
        + `${explained.power_limit_w} W; core clock ${human(explained.clock_hz, "Hz")}. Source: ${explained.source}`
        + `${explained.energy_source === explained.source ? "" : `, energy ${explained.energy_source}`}`
        + `${explained.device ? `, measured on ${explained.device}, ${explained.measured_at}` : ""}. Bottleneck: ${explained.bottleneck}.`),
      element("p", {}, `What to do: ${explained.what_to_do}.`),
      element("div", { class: "halves" },
        element("div", {}, element("h3", {}, "Roofline"), place),
        element("div", {}, element("h3", {}, "Where energy and time go"), energyTable(explained), ...explained.launch_details.map(timeTable))),
      element("h3", {}, "Commands"),
      ...(explained.commands.explain ? [command(explained.commands.explain, "explain this config")] : []),
      command(explained.commands.recommend, "recommend for this problem and operating point"),
    );
    box.hidden = false;
    return place;
  }

  function total(network, name) {
    return network.totals.find((each) => each.name === name);
  }

  const label = (total) => (total.complete ? total.name : `${total.name}, incomplete`);

  // The network view without its plot: totals side by side, power limits, layers.
  function networkTables(networks) {
    const shown = (n) => total(n, n.headline);
    const knee = (n) => n.sweep.find((row) => row.best);
    const parts = [table("All layers at the default power limit", [
      ["GPU", (n) => n.title, "text"], ["runs", (n) => label(shown(n)), "text"],
      ["latency (90 % interval)", (n) => interval(shown(n).latency_s, ...shown(n).latency_interval_s, "s")],
      ["energy (90 % interval)", (n) => interval(shown(n).energy_j, ...shown(n).energy_interval_j, "J")],
      ["power", (n) => human(shown(n).power_w, "W")], ["calls/s", (n) => Number((1 / shown(n).latency_s).toPrecision(3))],
      ["power limit (knee)", (n) => `${knee(n).power_limit_w} W: ${percent(knee(n).versus_first.slowdown, 1)} slower, ${percent(knee(n).versus_first.energy_saved, 1)} less energy`, "text"],
      ["source", (n) => shown(n).source, "text"],
    ], networks)];
    for (const network of networks) {
      const totals = table("Totals of all layers, fastest first", [
        ["runs", label, "text"], ["latency (90 % interval)", (row) => interval(row.latency_s, ...row.latency_interval_s, "s")],
        ["energy (90 % interval)", (row) => interval(row.energy_j, ...row.energy_interval_j, "J")], ["source", (row) => row.source, "text"],
      ], network.totals);
      const sweep = table(`${network.title} at several power limits; the bold row is the knee`, [
        ["power limit", (row) => `${row.power_limit_w} W`], ["latency (90 % interval)", (row) => interval(row.latency_s, ...row.latency_interval_s, "s")],
        ["energy (90 % interval)", (row) => interval(row.energy_j, ...row.energy_interval_j, "J")], ["power", (row) => human(row.power_w, "W")],
        ["slower", (row) => percent(row.versus_first.slowdown, 1)], ["energy saved", (row) => percent(row.versus_first.energy_saved, 1)],
      ], network.sweep, (row) => (row.best ? "knee" : ""));
      const layers = table(`Layers of ${network.workload}, each with all its occurrences`, [
        ["layer", (row) => row.layer, "text"], ["count", (row) => row.count], ["latency", (row) => human(row.latency_s, "s")],
        ["energy", (row) => human(row.energy_j, "J")], ["bottleneck", (row) => row.bottleneck, "text"],
        ["source", (row) => row.source, "text"], ["runs", (row) => row.kernel, "text"], ["config", (row) => row.config, "config text"],
      ], network.layers);
      parts.push(element("details", { class: "box" }, element("summary", {}, `${network.title}: totals, power limits and layers`), totals, sweep, layers, notes(network.notes)));
    }
    return parts;
  }

  Object.assign(kernrec, { describe, codes, frontTable, lineText, linesTable, showExplanation, networkTables });
})();
