// The plots, drawn by Bokeh on a canvas: fronts, rooflines, sweeps. Colors are those of the style sheet.
"use strict";
(() => {
  const { human, interval, prefixOf } = kernrec;
  const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];  // Okabe and Ito

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  function figure(options, title) {
    const plot = Bokeh.Plotting.figure({
      sizing_mode: "stretch_width", height: 340, toolbar_location: "above", output_backend: "canvas",
      tools: "pan,box_zoom,wheel_zoom,reset,save", ...options,
    });
    plot.toolbar.logo = null;
    plot.background_fill_color = plot.border_fill_color = color("panel");
    plot.outline_line_color = color("line");
    for (const axis of [...plot.xaxes ?? [plot.xaxis], ...plot.yaxes ?? [plot.yaxis]]) {
      axis.axis_label_text_color = axis.major_label_text_color = color("text");
      axis.axis_line_color = axis.major_tick_line_color = axis.minor_tick_line_color = color("dim");
      axis.axis_label_text_font_style = "normal";
    }
    plot.xgrid.grid_line_color = plot.ygrid.grid_line_color = color("line");
    return plot;
  }

  async function show(plot, target) {
    target.replaceChildren();
    return Bokeh.Plotting.show(plot, target);
  }

  function extent(values) {
    let low = Infinity, high = -Infinity;
    for (const value of values) { if (value < low) low = value; if (value > high) high = value; }
    return [low, high];
  }

  // What plots side by side share: units, and ranges that hold the front of each with its surroundings.
  function scales(fronts) {
    const both = ["latency_s", "energy_j"].map((quantity) => {
      const onFront = fronts.flatMap((front) => front.front.map((number) => front.points[quantity][number]));
      const all = fronts.flatMap((front) => extent(front.points[quantity]));
      const [low, high] = extent(onFront);
      const [scale, prefix] = prefixOf(low);
      const far = Math.min(extent(all)[1], 3 * high);
      return { scale, prefix, range: [low / 1.25 / scale, far * 1.1 / scale] };
    });
    return { latency: both[0], energy: both[1] };
  }

  // The columns of Bokeh's source for some points of a front.
  function columns(front, numbers, scale, describe) {
    const { latency_s: latency, energy_j: energy } = front.points;
    return {
      number: numbers,
      x: numbers.map((n) => latency[n] / scale.latency.scale),
      y: numbers.map((n) => energy[n] / scale.energy.scale),
      text: numbers.map((n) => describe(n).config),
      limit: numbers.map((n) => describe(n).limit),
      latency: numbers.map((n) => describe(n).latency),
      energy: numbers.map((n) => describe(n).energy),
      bottleneck: numbers.map((n) => describe(n).bottleneck),
      source: numbers.map((n) => describe(n).source),
    };
  }

  function bounds(front, numbers, scale) {
    const part = (name, unit) => numbers.map((n) => front.points[name][n] / unit);
    return {
      x: part("latency_s", scale.latency.scale), y: part("energy_j", scale.energy.scale),
      left: part("latency_low_s", scale.latency.scale), right: part("latency_high_s", scale.latency.scale),
      bottom: part("energy_low_j", scale.energy.scale), top: part("energy_high_j", scale.energy.scale),
    };
  }

  function intervals(plot, source, name, alpha) {
    const line = { source, line_color: color(name), line_alpha: alpha, line_width: 1.2 };
    plot.segment({ field: "left" }, { field: "y" }, { field: "right" }, { field: "y" }, line);
    plot.segment({ field: "x" }, { field: "bottom" }, { field: "x" }, { field: "top" }, line);
  }

  // Draws the points of a front into a target; `onPick(number)` is called for a click. Returns what marks a point.
  async function drawFront(target, front, scale, describe, onPick) {
    const plot = figure({
      x_axis_type: "log", y_axis_type: "log", x_range: scale.latency.range, y_range: scale.energy.range,
      x_axis_label: `latency [${scale.latency.prefix}s]`, y_axis_label: `energy [${scale.energy.prefix}J]`,
    });
    const isMeasured = new Set(Object.keys(front.measured).map(Number));
    const all = front.points.latency_s.map((_, number) => number);
    const described = new Map();
    const once = (n) => described.get(n) ?? described.set(n, describe(n)).get(n);
    const source = (numbers) => new Bokeh.ColumnDataSource({ data: columns(front, numbers, scale, once) });
    const predicted = source(all.filter((n) => !isMeasured.has(n)));
    const measured = source(all.filter((n) => isMeasured.has(n)));

    const dots = plot.scatter({ field: "x" }, { field: "y" }, {
      source: predicted, size: 6, fill_color: color("predicted"), fill_alpha: 0.55, line_color: null,
      nonselection_fill_alpha: 0.55, nonselection_line_color: null,
    });
    intervals(plot, new Bokeh.ColumnDataSource({ data: bounds(front, front.front, scale) }), "front", 0.25);
    plot.line(front.front.map((n) => front.points.latency_s[n] / scale.latency.scale),
      front.front.map((n) => front.points.energy_j[n] / scale.energy.scale), { line_color: color("front"), line_width: 1.6 });
    const squares = plot.scatter({ field: "x" }, { field: "y" }, {
      source: measured, size: 9, marker: "square", fill_color: color("measured"), line_color: color("panel"),
      nonselection_fill_alpha: 1, nonselection_line_alpha: 1,
    });
    const mark = new Bokeh.ColumnDataSource({ data: { ...bounds(front, [], scale) } });
    intervals(plot, mark, "chosen", 1);
    plot.scatter({ field: "x" }, { field: "y" }, { source: mark, size: 15, fill_color: null, line_color: color("chosen"), line_width: 3 });

    const tooltips = [["config", "@text"], ["power limit, clock", "@limit"], ["latency", "@latency"], ["energy", "@energy"],
      ["bottleneck", "@bottleneck"], ["source", "@source"]];
    plot.add_tools(new Bokeh.HoverTool({ tooltips, renderers: [dots, squares], point_policy: "snap_to_data", limit: 1 }));
    plot.add_tools(new Bokeh.TapTool({ renderers: [dots, squares] }));
    for (const each of [predicted, measured]) {
      each.selected.properties.indices.change.connect(() => {
        const [index] = each.selected.indices;
        if (index !== undefined) onPick(each.data.number[index]);
      });
    }
    await show(plot, target);
    const place = (number) => ({ x: bounds(front, [number], scale).x[0], y: bounds(front, [number], scale).y[0] });
    return { plot, place, choose: (number) => { mark.data = bounds(front, number === null ? [] : [number], scale); } };
  }

  // The roof of a GPU and the config below it.
  async function drawRoofline(target, roof) {
    const { intensity, achieved_flops: achieved, peak_flops: peak, bandwidth, ridge } = roof;
    const low = Math.min(intensity, ridge) / 8, high = Math.max(intensity, ridge) * 8, unit = 1e12;
    const plot = figure({
      x_axis_type: "log", y_axis_type: "log", height: 260, x_axis_label: "operations per byte of DRAM traffic",
      y_axis_label: "TFLOP/s", x_range: [low, high],
    });
    plot.line([low, ridge, high], [low * bandwidth / unit, peak / unit, peak / unit], { line_color: color("roof"), line_width: 2 });
    plot.scatter([intensity], [achieved / unit], { size: 13, fill_color: color("chosen"), line_color: color("panel") });
    await show(plot, target);
    return plot;
  }

  // Networks over power limits: a line a GPU, its knee marked.
  async function drawSweeps(target, networks) {
    const all = networks.flatMap((network) => network.sweep);
    const [timeScale, timePrefix] = prefixOf(Math.min(...all.map((row) => row.latency_s)));
    const [energyScale, energyPrefix] = prefixOf(Math.min(...all.map((row) => row.energy_j)));
    const plot = figure({
      x_axis_type: "log", y_axis_type: "log", height: 380,
      x_axis_label: `latency of the network [${timePrefix}s]`, y_axis_label: `energy [${energyPrefix}J]`,
    });
    const renderers = [];
    networks.forEach((network, number) => {
      const shade = COLORS[number % COLORS.length];
      const rows = network.sweep;
      const source = new Bokeh.ColumnDataSource({ data: {
        x: rows.map((row) => row.latency_s / timeScale), y: rows.map((row) => row.energy_j / energyScale),
        gpu: rows.map(() => network.title), limit: rows.map((row) => `${row.power_limit_w} W`),
        size: rows.map((row) => (row.knee ? 15 : 7)), latency: rows.map((row) => interval(row.latency_s, ...row.latency_interval_s, "s")),
        energy: rows.map((row) => interval(row.energy_j, ...row.energy_interval_j, "J")),
      } });
      plot.line({ field: "x" }, { field: "y" }, { source, line_color: shade, line_width: 2, legend_label: network.title });
      renderers.push(plot.scatter({ field: "x" }, { field: "y" }, { source, size: { field: "size" }, fill_color: shade, line_color: color("panel") }));
    });
    plot.add_tools(new Bokeh.HoverTool({ renderers, limit: 1, tooltips: [["GPU", "@gpu"], ["power limit", "@limit"], ["latency", "@latency"], ["energy", "@energy"]] }));
    const legend = plot.legend;
    legend.location = "top_left";
    legend.background_fill_color = color("panel");
    legend.label_text_color = color("text");
    legend.border_line_color = color("line");
    await show(plot, target);
    return plot;
  }

  Object.assign(kernrec, { scales, drawFront, drawRoofline, drawSweeps });
})();
