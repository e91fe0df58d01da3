// What all plots share, rooflines and sweeps, drawn by Bokeh on a canvas. Colors are those of the style sheet.
"use strict";
(() => {
  const { interval, prefixOf } = kernrec;
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

  // Networks at several power limits: a line a GPU, its knee marked.
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
        size: rows.map((row) => (row.best ? 15 : 7)), latency: rows.map((row) => interval(row.latency_s, ...row.latency_interval_s, "s")),
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

  Object.assign(kernrec, { color, figure, show, drawRoofline, drawSweeps });
})();
