//! Latency and throughput against the number of sessions, as one SVG.

use std::ops::Range;
use std::path::Path;

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use super::row::{OURS, Row};
use super::table::number;
use crate::output::Failure;

const SIZE: (u32, u32) = (900, 380);
const BLUE_LINE: RGBColor = RGBColor(0x1f, 0x77, 0xb4);
const ORANGE_LINE: RGBColor = RGBColor(0xff, 0x7f, 0x0e);

/// One panel.
struct Panel {
    title: &'static str,
    /// Sessions and value.
    ours: Vec<(f64, f64)>,
    baseline: Option<f64>,
}

/// Writes the plot. Nothing when fewer than two numbers of sessions were measured.
pub fn write(rows: &[Row], file: &Path) -> Result<(), Failure> {
    let panels = [
        panel(rows, "latency", "p50_us", "idle latency, p50 in us", &|r| r.pushers == Some(1)),
        panel(rows, "throughput", "per_second", "messages a second, 64 in flight", &|r| {
            r.pushers != Some(1) && r.waits_for.as_deref() == Some("delivery")
        }),
    ];
    if panels.iter().any(|p| p.ours.len() < 2) {
        return Ok(());
    }
    draw(&panels, file).map_err(|e| Failure::failed(format!("plot: {e}")))
}

fn panel(
    rows: &[Row],
    scenario: &str,
    value: &str,
    title: &'static str,
    fits: &dyn Fn(&Row) -> bool,
) -> Panel {
    let rows: Vec<&Row> = rows.iter().filter(|r| r.scenario == scenario && fits(r)).collect();
    let point = |r: &&Row| Some((f64::from(r.sessions?), r.value(value)?));
    let mut ours: Vec<_> = rows.iter().filter(|r| r.system == OURS).filter_map(point).collect();
    ours.sort_by(|a, b| a.0.total_cmp(&b.0));
    let baseline = rows.iter().find(|r| r.system == "brpop").and_then(|r| r.value(value));
    Panel { title, ours, baseline }
}

fn draw(panels: &[Panel], file: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    for (panel, area) in panels.iter().zip(root.split_evenly((1, panels.len()))) {
        let least = panel.ours.first().map_or(1.0, |p| p.0);
        let most = panel.ours.last().map_or(10.0, |p| p.0);
        let top = panel.ours.iter().map(|p| p.1).chain(panel.baseline).fold(0.0, f64::max) * 1.15;
        chart(panel, &area, (least..most).log_scale(), least..most, 0.0..top)?;
    }
    root.present()?;
    Ok(())
}

fn chart<X>(
    panel: &Panel,
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    scale: X,
    across: Range<f64>,
    up: Range<f64>,
) -> Result<(), Box<dyn std::error::Error>>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .caption(panel.title, ("sans-serif", 16))
        .margin(12)
        .margin_right(28)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(scale, RangedCoordf64::from(up))?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("claimed sessions")
        .x_label_formatter(&|v| number(*v).trim_end_matches(".00").to_owned())
        .y_label_formatter(&|v| number(*v).trim_end_matches(".00").to_owned())
        .draw()?;
    chart
        .draw_series(LineSeries::new(panel.ours.clone(), BLUE_LINE.stroke_width(2)).point_size(4))?
        .label("mcp-courier")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], BLUE_LINE.stroke_width(2)));
    if let Some(baseline) = panel.baseline {
        let line = [(across.start, baseline), (across.end, baseline)];
        chart
            .draw_series(LineSeries::new(line, ORANGE_LINE.stroke_width(2)))?
            .label("BRPOP, a connection for each queue")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], ORANGE_LINE.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerMiddle)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}
