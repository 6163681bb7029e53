// SPDX-License-Identifier: GPL-2.0

//! Plots of the rows, as SVG.

use crate::row::Row;
use clap::Args;
use plotters::{
    coord::CoordTranslate,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use std::{
    error::Error,
    fs, io,
    path::{Path, PathBuf},
};

const WIDTH: u32 = 760;
/// Pixels of a bar, and of what is above and below all of them.
const BAR: u32 = 15;
const AROUND: u32 = 110;
const CURVES_HEIGHT: u32 = 420;
const COLOURS: [RGBColor; 3] = [
    RGBColor(43, 94, 155),
    RGBColor(214, 122, 39),
    RGBColor(70, 140, 80),
];

#[derive(Args)]
pub(crate) struct Options {
    /// The array of all rows
    #[arg(long)]
    json: PathBuf,

    /// The folder where the plots go
    into: PathBuf,
}

/// Bars side by side: for each name one of each series.
struct Bars {
    file: &'static str,
    title: &'static str,
    unit: &'static str,
    names: Vec<String>,
    series: Vec<(&'static str, Vec<Option<f64>>)>,
}

/// A curve for each name: how what a packet costs changes with the number of flows.
struct Curves {
    file: &'static str,
    title: &'static str,
    curves: Vec<(String, Vec<(u32, f64)>)>,
}

pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let rows: Vec<Row> = serde_json::from_str(&fs::read_to_string(&options.json)?)?;
    for bars in all_bars(&rows) {
        if !bars.names.is_empty() {
            bars.draw(&options.into)
                .map_err(|error| io::Error::other(format!("{}: {error}", bars.file)))?;
        }
    }
    let curves = scale(&rows);
    if !curves.curves.is_empty() {
        curves
            .draw(&options.into)
            .map_err(|error| io::Error::other(format!("{}: {error}", curves.file)))?;
    }
    Ok(true)
}

/// What it is called, and which rows are of it.
type Series<'s> = (&'static str, &'s dyn Fn(&Row) -> bool);

/// The modes of all series' rows, and of each series the modes' costs.
fn bars(
    file: &'static str,
    title: &'static str,
    unit: &'static str,
    rows: &[Row],
    cost: impl Fn(&Row) -> Option<f64>,
    series: &[Series<'_>],
) -> Bars {
    let mut names: Vec<String> = Vec::new();
    for row in rows {
        if series.iter().any(|(_, is_of)| is_of(row))
            && cost(row).is_some()
            && !names.contains(&row.mode)
        {
            names.push(row.mode.clone());
        }
    }
    let costs = |is_of: &dyn Fn(&Row) -> bool| {
        let of = |name: &String| {
            rows.iter()
                .find(|row| row.mode == *name && is_of(row))
                .and_then(&cost)
        };
        names.iter().map(of).collect()
    };
    Bars {
        file,
        title,
        unit,
        series: series
            .iter()
            .map(|&(label, is_of)| (label, costs(is_of)))
            .collect(),
        names,
    }
}

fn all_bars(rows: &[Row]) -> Vec<Bars> {
    vec![
        bars(
            "serve.svg",
            "Answering requests of random clients, 64 bytes",
            "instructions per request",
            rows,
            cost,
            &[
                ("no policy", &|row| is_served(row, "none")),
                ("ten rules as one BPF program, each way", &|row| {
                    is_served(row, "bpf_netfilter")
                }),
                ("ten nft rules each way", &|row| is_served(row, "nft10")),
            ],
        ),
        one_way(
            "send.svg",
            "Sending 64 bytes to one peer",
            rows,
            "send",
            false,
        ),
        one_way(
            "send_offloads.svg",
            "Sending 64 bytes to one peer, NIC with offloads",
            rows,
            "send",
            true,
        ),
        one_way("recv.svg", "Receiving 64 bytes", rows, "recv", false),
        bars(
            "rtt.svg",
            "Round trips of 64 bytes: median time",
            "nanoseconds of the machine's clock, which are instructions",
            rows,
            |row| Some(row.median_ns? as f64),
            &[("", &|row| is_plain(row, "rtt", "none", false))],
        ),
    ]
}

/// What packets of one direction cost, without a policy and with rules.
fn one_way(
    file: &'static str,
    title: &'static str,
    rows: &[Row],
    direction: &str,
    offloads: bool,
) -> Bars {
    let plain = |row: &Row, policy: &str| is_plain(row, direction, policy, offloads);
    bars(
        file,
        title,
        "instructions per packet",
        rows,
        cost,
        &[
            ("no policy", &|row| plain(row, "none")),
            ("ten nft rules", &|row| plain(row, "nft10")),
        ],
    )
}

fn cost(row: &Row) -> Option<f64> {
    row.insn_per_packet
}

/// Whether it is of one peer, 64 bytes and one queue.
fn is_plain(row: &Row, direction: &str, policy: &str, offloads: bool) -> bool {
    row.direction == direction
        && row.policy == policy
        && row.policy_holds != Some(false)
        && row.offloads == offloads
        && row.queues.is_none()
        && row.payload == 64
        && row.peers == 1
        && row.kernel_bytes.is_none()
}

fn is_served(row: &Row, policy: &str) -> bool {
    row.direction == "serve" && row.policy == policy && row.policy_holds != Some(false)
}

fn scale(rows: &[Row]) -> Curves {
    let mut curves: Vec<(String, Vec<(u32, f64)>)> = Vec::new();
    for row in rows.iter().filter(|row| row.kernel_bytes.is_some()) {
        let Some(cost) = row.insn_per_packet else {
            continue;
        };
        let point = (row.flows, cost);
        match curves.iter_mut().find(|(name, _)| *name == row.mode) {
            Some((_, points)) => points.push(point),
            None => curves.push((row.mode.clone(), vec![point])),
        }
    }
    Curves {
        file: "scale.svg",
        title: "Sending 64 bytes, each by a random flow",
        curves,
    }
}

impl Bars {
    fn draw(&self, into: &Path) -> Result<(), Box<dyn Error>> {
        let (names, series) = (self.names.len() as u32, self.series.len() as u32);
        let band = series * BAR + BAR / 2;
        let path = into.join(self.file);
        let root = SVGBackend::new(&path, (WIDTH, names * band + AROUND)).into_drawing_area();
        root.fill(&WHITE)?;
        let costs = self.series.iter().flat_map(|(_, costs)| costs);
        let most = costs.filter_map(|&cost| cost).fold(1.0, f64::max) * 1.12;
        let mut chart = ChartBuilder::on(&root)
            .caption(self.title, ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(42)
            .y_label_area_size(170)
            .build_cartesian_2d(0.0..most, f64::from(names)..0.0)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.15))
            .x_desc(self.unit)
            .label_style(("sans-serif", 13))
            .x_label_formatter(&|cost| format!("{cost:.0}"))
            .y_labels(0)
            .draw()?;
        let left = TextStyle::from(("sans-serif", 13)).pos(Pos::new(HPos::Right, VPos::Center));
        chart.draw_series(self.names.iter().enumerate().map(|(at, name)| {
            EmptyElement::at((0.0, at as f64 + 0.5))
                + Text::new(name.clone(), (-6, 0), left.clone())
        }))?;
        let each = f64::from(BAR) / f64::from(band);
        let first = (1.0 - each * f64::from(series)) / 2.0;
        for (place, (label, costs)) in self.series.iter().enumerate() {
            let colour = COLOURS[place % COLOURS.len()];
            let top = |at: usize| at as f64 + first + each * place as f64;
            let there = costs
                .iter()
                .enumerate()
                .filter_map(|(at, &cost)| Some((at, cost?)));
            let rectangles = there.clone().map(|(at, cost)| {
                Rectangle::new([(0.0, top(at)), (cost, top(at) + each)], colour.filled())
            });
            let anno = chart.draw_series(rectangles)?;
            if !label.is_empty() {
                anno.label(*label).legend(move |(x, y)| {
                    Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled())
                });
            }
            chart.draw_series(there.map(|(at, cost)| {
                EmptyElement::at((cost, top(at)))
                    + Text::new(format!("{cost:.0}"), (4, 2), ("sans-serif", 12))
            }))?;
        }
        if self.series.iter().any(|(label, _)| !label.is_empty()) {
            explain_series(&mut chart)?;
        }
        Ok(root.present()?)
    }
}

impl Curves {
    fn draw(&self, into: &Path) -> Result<(), Box<dyn Error>> {
        let path = into.join(self.file);
        let root = SVGBackend::new(&path, (WIDTH, CURVES_HEIGHT)).into_drawing_area();
        root.fill(&WHITE)?;
        let points = || self.curves.iter().flat_map(|(_, points)| points);
        let most = points().map(|&(_, cost)| cost).fold(1.0, f64::max) * 1.1;
        let flows = points().map(|&(flows, _)| flows).max().unwrap_or(1);
        let mut chart = ChartBuilder::on(&root)
            .caption(self.title, ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(42)
            .y_label_area_size(70)
            .build_cartesian_2d((1.0..f64::from(flows) * 1.3).log_scale(), 0.0..most)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.15))
            .x_desc("sockets, or flows on one channel")
            .y_desc("instructions per packet")
            .label_style(("sans-serif", 13))
            .x_label_formatter(&|flows| format!("{flows:.0}"))
            .y_label_formatter(&|cost| format!("{cost:.0}"))
            .draw()?;
        for (place, (name, points)) in self.curves.iter().enumerate() {
            let colour = COLOURS[place % COLOURS.len()];
            let points: Vec<_> = points
                .iter()
                .map(|&(flows, cost)| (f64::from(flows), cost))
                .collect();
            chart
                .draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?
                .label(name)
                .legend(move |(x, y)| {
                    Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled())
                });
            let dots = points.iter().map(|&at| Circle::new(at, 4, colour.filled()));
            chart.draw_series(dots)?;
        }
        explain_series(&mut chart)?;
        Ok(root.present()?)
    }
}

/// Says which colour is of what.
fn explain_series<'c, 'b: 'c, C: CoordTranslate>(
    chart: &mut ChartContext<'c, SVGBackend<'b>, C>,
) -> Result<(), Box<dyn Error>> {
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE)
        .label_font(("sans-serif", 13))
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(mode: &str, policy: &str, flows: u32, cost: f64) -> Row {
        Row {
            mode: mode.to_owned(),
            direction: "send".to_owned(),
            payload: 64,
            policy: policy.to_owned(),
            flows,
            peers: 1,
            insn_per_packet: Some(cost),
            ..Row::default()
        }
    }

    #[test]
    fn bars_are_of_rows_whose_policy_holds() {
        let mut blind = row("af_packet", "nft10", 1, 4000.0);
        blind.policy_holds = Some(false);
        let rows = [
            row("send", "none", 1, 5000.0),
            row("af_packet", "none", 1, 4000.0),
            row("send", "nft10", 1, 7000.0),
            blind,
        ];
        let bars = &all_bars(&rows)[1];
        assert_eq!(bars.names, ["send", "af_packet"]);
        assert_eq!(bars.series[0].1, [Some(5000.0), Some(4000.0)]);
        assert_eq!(bars.series[1].1, [Some(7000.0), None]);
    }

    #[test]
    fn plots_have_names_and_numbers() {
        let mut rows = vec![row("send", "none", 1, 5000.0)];
        for flows in [1, 1000] {
            let mut one = row("kopi_doorbell", "none", flows, 6000.0);
            one.kernel_bytes = Some(1);
            rows.push(one);
        }
        let into = std::env::temp_dir().join(format!("kopi-bench-plots-{}", std::process::id()));
        fs::create_dir_all(&into).unwrap();
        all_bars(&rows)[1].draw(&into).unwrap();
        let curves = scale(&rows);
        assert_eq!(curves.curves.len(), 1);
        curves.draw(&into).unwrap();
        let bars = fs::read_to_string(into.join("send.svg")).unwrap();
        let curves = fs::read_to_string(into.join("scale.svg")).unwrap();
        fs::remove_dir_all(&into).unwrap();
        assert!(
            bars.contains("\nsend\n") && bars.contains("\n5000\n"),
            "{bars}"
        );
        assert!(curves.contains("\nkopi_doorbell\n"), "{curves}");
    }
}
