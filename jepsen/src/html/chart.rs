//! The drawings of the report, as SVG: rate, latency, quantiles, and the timeline.

use std::fmt::Write as _;

use super::escape;
use super::events::{Band, Events, Operation};
use crate::{fault::FaultClass, history::Kind};

/// Operations drawn in one picture.
pub(super) const OPERATIONS_MAX: usize = 10_000;

const WIDTH: f64 = 1_180.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 10.0;
const HEIGHT: f64 = 190.0;
const BOTTOM: f64 = 22.0;
const LANE: f64 = 13.0;
/// Widest timeline in pixels, and its scale before that.
const TIMELINE_WIDTH_MAX: f64 = 12_000.0;
const PIXELS_PER_SECOND: f64 = 40.0;

const OK: &str = "#6DB6FE";
const INFO: &str = "#FFAA26";
const FAIL: &str = "#FEB5DA";
const OPEN: &str = "#C9CED6";

fn colour(kind: Kind) -> &'static str {
    match kind {
        Kind::Ok => OK,
        Kind::Info => INFO,
        Kind::Fail => FAIL,
        Kind::Invoke => OPEN,
    }
}

/// Each class has its own hue.
fn band_colour(class: FaultClass) -> &'static str {
    match class {
        FaultClass::Kill => "#E07A7A",
        FaultClass::Pause => "#C58BD6",
        FaultClass::Restart => "#B08968",
        FaultClass::Transfer => "#3D8B7D",
        FaultClass::Partition => "#7FA65A",
        FaultClass::Delay => "#B5B34A",
        FaultClass::Loss => "#4FA3A5",
        FaultClass::HalfOpen => "#8C8CD9",
        FaultClass::DiskFull => "#D98E4A",
        FaultClass::SlowDisk => "#D9B24A",
        FaultClass::HangDisk => "#A66A3F",
        FaultClass::Corrupt => "#8B3A62",
        FaultClass::Member => "#4F5D75",
        FaultClass::Rollback => "#2F6F8F",
        FaultClass::Power => "#D4477A",
        FaultClass::Freeze => "#5A8FC2",
        FaultClass::Clock => "#6B7A3A",
    }
}

/// Time to x.
struct Axis {
    left: f64,
    width: f64,
    end_ms: f64,
}

impl Axis {
    fn x(&self, milliseconds: f64) -> f64 {
        self.left + self.width * (milliseconds / self.end_ms).clamp(0.0, 1.0)
    }

    /// Ticks of a round number of seconds, with their labels below `y`.
    fn ticks(&self, y: f64, top: f64) -> String {
        let steps = [1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0];
        let seconds = self.end_ms / 1_000.0;
        let fits = |step: &f64| self.width / (seconds / step) >= 60.0;
        let step = steps.into_iter().find(fits).unwrap_or(7_200.0);
        let mut svg = String::new();
        let mut at = 0.0;
        while at <= seconds {
            let x = self.x(at * 1_000.0);
            add(
                &mut svg,
                &format!(
                    "<line x1=\"{x:.1}\" y1=\"{top:.1}\" x2=\"{x:.1}\" y2=\"{y:.1}\" stroke=\"#eef0f3\"/><text x=\"{x:.1}\" \
                 y=\"{:.1}\" text-anchor=\"middle\">{at:.0} s</text>",
                    y + 15.0
                ),
            );
            at += step;
        }
        svg
    }
}

fn add(svg: &mut String, part: &str) {
    svg.push_str(part);
    svg.push('\n');
}

/// Colours and their meaning.
pub(super) fn legend(events: &Events) -> String {
    let item = |colour: &str, text: &str| {
        format!("<span><i style=\"background:{colour}\"></i>{text}</span>")
    };
    let mut items =
        vec![item(OK, "ok"), item(INFO, "info: nobody knows"), item(FAIL, "fail: not done")];
    items.extend(events.classes().into_iter().map(|class| item(band_colour(class), class.name())));
    format!("<h2>Colours</h2>\n<div class=\"legend\">{}</div>\n", items.join(""))
}

/// A frame with bands behind, y labels at fractions of the height, and the drawing.
fn frame(events: &Events, labels: &[(f64, String)], drawing: &str) -> String {
    let axis = axis(events);
    let floor = HEIGHT - BOTTOM;
    let mut svg = format!(
        "<div class=\"scroll\"><svg width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\">\n"
    );
    for band in &events.bands {
        add(&mut svg, &band_rectangle(band, &axis, 4.0, floor - 4.0, 0.22));
    }
    add(&mut svg, &axis.ticks(floor, 4.0));
    for (y, text) in labels {
        add(
            &mut svg,
            &format!(
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#eef0f3\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                y + 4.0,
                escape(text)
            ),
        );
    }
    add(&mut svg, drawing);
    svg + "</svg></div>\n"
}

fn axis(events: &Events) -> Axis {
    Axis { left: LEFT, width: WIDTH - LEFT - RIGHT, end_ms: events.end_ms }
}

fn band_rectangle(band: &Band, axis: &Axis, y: f64, height: f64, opacity: f64) -> String {
    let (from, to) = (axis.x(band.from_ms), axis.x(band.to_ms));
    format!(
        "<rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"{}\" \
         fill-opacity=\"{opacity}\"><title>{}</title></rect>",
        (to - from).max(2.0),
        band_colour(band.class),
        escape(&band.text)
    )
}

/// A curve per outcome: completions in each window.
pub(super) fn rate(events: &Events) -> String {
    let windows = windows(events);
    let mut counts = vec![[0_u32; 3]; windows];
    for operation in &events.operations {
        let place = window(operation.to_ms, events, windows);
        match operation.kind {
            Kind::Ok => counts[place][0] += 1,
            Kind::Info => counts[place][1] += 1,
            Kind::Fail => counts[place][2] += 1,
            Kind::Invoke => {}
        }
    }
    let seconds = events.seconds() / count(windows);
    let per_second = |number: u32| f64::from(number) / seconds;
    let most = counts.iter().flatten().map(|number| per_second(*number)).fold(1.0, f64::max);
    let y = |value: f64| 8.0 + (HEIGHT - BOTTOM - 8.0) * (1.0 - value / most);
    let curves: String = [(0, OK), (1, INFO), (2, FAIL)]
        .into_iter()
        .map(|(kind, colour)| {
            let values: Vec<Option<f64>> =
                counts.iter().map(|counts| Some(y(per_second(counts[kind])))).collect();
            polyline(&values, events, colour)
        })
        .collect();
    let labels = [
        (y(0.0), "0".to_owned()),
        (y(most / 2.0), format!("{:.0}", most / 2.0)),
        (y(most), format!("{most:.0}")),
    ];
    frame(events, &labels, &curves)
}

/// Windows of at least half a second, 240 at most.
fn windows(events: &Events) -> usize {
    let mut windows = 1;
    while windows < 240 && count(windows) < events.seconds() * 2.0 {
        windows += 1;
    }
    windows
}

fn window(milliseconds: f64, events: &Events, windows: usize) -> usize {
    (0..windows)
        .collect::<Vec<_>>()
        .partition_point(|place| count(*place + 1) * events.end_ms / count(windows) <= milliseconds)
        .min(windows - 1)
}

fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

fn polyline(values: &[Option<f64>], events: &Events, colour: &str) -> String {
    let axis = axis(events);
    let mut parts = String::new();
    let mut points = String::new();
    let mut flush = |points: &mut String| {
        if !points.is_empty() {
            add(
                &mut parts,
                &format!(
                    "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"/>",
                    points.trim_end()
                ),
            );
            points.clear();
        }
    };
    for (place, value) in values.iter().enumerate() {
        match value {
            Some(y) => {
                let middle = (count(place) + 0.5) * events.end_ms / count(values.len());
                write!(points, "{:.1},{y:.1} ", axis.x(middle))
                    .expect("writing to a string cannot fail");
            }
            None => flush(&mut points),
        }
    }
    flush(&mut points);
    parts
}

/// The y of a latency on a logarithmic scale from 0.1 ms to 10 s.
fn latency_y(milliseconds: f64) -> f64 {
    let height = HEIGHT - BOTTOM - 8.0;
    let decades = (milliseconds.clamp(0.1, 10_000.0) / 0.1).log10();
    8.0 + height * (1.0 - decades / 5.0)
}

fn latency_labels() -> [(f64, String); 6] {
    [
        (0.1, "0.1 ms"),
        (1.0, "1 ms"),
        (10.0, "10 ms"),
        (100.0, "100 ms"),
        (1_000.0, "1 s"),
        (10_000.0, "10 s"),
    ]
    .map(|(value, text)| (latency_y(value), text.to_owned()))
}

/// A point per operation.
pub(super) fn latency_points(events: &Events) -> String {
    let axis = axis(events);
    let (drawn, left_out) = sample(&events.operations);
    let mut points = String::new();
    for operation in drawn {
        add(
            &mut points,
            &format!(
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"1.6\" fill=\"{}\"/>",
                axis.x(operation.from_ms),
                latency_y(operation.latency_ms()),
                colour(operation.kind)
            ),
        );
    }
    frame(events, &latency_labels(), &points) + &left_out
}

/// Median and upper quantiles per window.
pub(super) fn latency_quantiles(events: &Events) -> String {
    let windows = windows(events).div_ceil(2);
    let mut latencies: Vec<Vec<f64>> = vec![Vec::new(); windows];
    for operation in events.operations.iter().filter(|operation| operation.kind == Kind::Ok) {
        latencies[window(operation.from_ms, events, windows)].push(operation.latency_ms());
    }
    for window in &mut latencies {
        window.sort_by(f64::total_cmp);
    }
    let curves: String = [(50, "#2F7DC0"), (95, "#7A5AA6"), (99, "#C2571A"), (100, "#B3261E")]
        .into_iter()
        .map(|(percent, colour)| {
            let values: Vec<Option<f64>> = latencies
                .iter()
                .map(|window| {
                    let place = (window.len() * percent).div_ceil(100).max(1) - 1;
                    window.get(place).map(|latency| latency_y(*latency))
                })
                .collect();
            polyline(&values, events, colour)
        })
        .collect();
    let legend = "<div class=\"legend\"><span><i style=\"background:#2F7DC0\"></i>p50</span><span><i \
                  style=\"background:#7A5AA6\"></i>p95</span><span><i style=\"background:#C2571A\"></i>p99</span><span><i \
                  style=\"background:#B3261E\"></i>max</span></div>\n";
    legend.to_owned() + &frame(events, &latency_labels(), &curves)
}

/// A lane per fault class and per client thread.
pub(super) fn timeline(events: &Events) -> String {
    let (drawn, left_out) = sample(&events.operations);
    let classes = events.classes();
    let width = (events.seconds() * PIXELS_PER_SECOND).clamp(WIDTH - 90.0, TIMELINE_WIDTH_MAX);
    let axis = Axis { left: 80.0, width, end_ms: events.end_ms };
    let has_last_phase = events.operations.iter().any(|operation| operation.thread.is_none());
    let threads = usize::try_from(events.threads).unwrap_or(usize::MAX).min(1_000);
    let lanes = classes.len() + threads + usize::from(has_last_phase);
    let floor = 6.0 + count(lanes) * LANE;
    let mut svg = format!(
        "<div class=\"scroll\"><svg width=\"{:.0}\" height=\"{:.0}\">\n",
        width + 95.0,
        floor + BOTTOM
    );
    add(&mut svg, &axis.ticks(floor, 4.0));
    let label = |svg: &mut String, lane: usize, text: &str| {
        let y = 6.0 + count(lane) * LANE + LANE - 3.0;
        add(
            svg,
            &format!(
                "<text class=\"name\" x=\"74\" y=\"{y:.1}\" text-anchor=\"end\">{}</text>",
                escape(text)
            ),
        );
    };
    for (lane, class) in classes.iter().enumerate() {
        label(&mut svg, lane, class.name());
        let y = 6.0 + count(lane) * LANE;
        for band in events.bands.iter().filter(|band| band.class == *class) {
            add(&mut svg, &band_rectangle(band, &axis, 6.0, floor - 6.0, 0.1));
            add(&mut svg, &band_rectangle(band, &axis, y, LANE - 2.0, 0.95));
        }
    }
    for thread in 0..threads {
        label(&mut svg, classes.len() + thread, &format!("client {thread}"));
    }
    if has_last_phase {
        label(&mut svg, classes.len() + threads, "last phase");
    }
    for operation in drawn {
        let thread =
            operation.thread.map_or(threads, |thread| usize::try_from(thread).unwrap_or(threads));
        add(&mut svg, &bar(operation, &axis, 6.0 + count(classes.len() + thread) * LANE));
    }
    svg + "</svg></div>\n" + &left_out
}

fn bar(operation: &Operation, axis: &Axis, y: f64) -> String {
    let (from, to) = (axis.x(operation.from_ms), axis.x(operation.to_ms));
    format!(
        "<rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"><title>{} {:.1} ms</title></rect>",
        (to - from).max(1.0),
        LANE - 2.0,
        colour(operation.kind),
        escape(&operation.text),
        operation.latency_ms()
    )
}

/// The operations to draw: all that did not succeed before any that did, evenly thinned; and a line that says so.
fn sample(operations: &[Operation]) -> (Vec<&Operation>, String) {
    if operations.len() <= OPERATIONS_MAX {
        return (operations.iter().collect(), String::new());
    }
    let (fine, rest): (Vec<&Operation>, Vec<&Operation>) =
        operations.iter().partition(|operation| operation.kind == Kind::Ok);
    let rest = thin(&rest, OPERATIONS_MAX / 2);
    let fine = thin(&fine, OPERATIONS_MAX - rest.len());
    let mut drawn = rest;
    drawn.extend(fine);
    let text = format!(
        "<p>{} of {} operations are drawn, evenly chosen.</p>\n",
        drawn.len(),
        operations.len()
    );
    (drawn, text)
}

fn thin<'a>(operations: &[&'a Operation], most: usize) -> Vec<&'a Operation> {
    let step = operations.len().div_ceil(most.max(1)).max(1);
    operations.iter().step_by(step).copied().collect()
}
