//! A run as one page that needs no network: the text by surprise, and what each step was like.

use anyhow::Result;
use minijinja::{Environment, context};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::decode::Step;
use crate::sampling::Drawn;
use crate::stats::{Summary, quantile};

/// What the page shows.
pub struct Page<'a> {
    /// What the model was asked.
    pub prompt: &'a str,
    /// The settings.
    pub how: &'a str,
    /// Why the text ended.
    pub end: &'a str,
    /// The figures of the run.
    pub summary: &'a Summary,
    /// Its steps.
    pub steps: &'a [Step<Drawn>],
    /// The text that each step completed.
    pub texts: &'a [String],
    /// The vocabulary's name of each step's token.
    pub names: &'a [String],
}

/// Lower ends of the classes of surprise, in bits. The page has a colour for each.
const SURPRISES: [f64; 7] = [0.0, 0.5, 1.0, 2.0, 4.0, 6.0, 9.0];

const SIZE: (u32, u32) = (1100, 260);
const POINT: RGBColor = RGBColor(31, 95, 153);
const LINE: RGBColor = RGBColor(196, 74, 28);
const GRID: RGBColor = RGBColor(228, 228, 228);
const INK: RGBColor = RGBColor(60, 60, 60);
/// Steps of the running median.
const WINDOW: usize = 15;

impl Page<'_> {
    /// The page.
    ///
    /// # Errors
    /// Where a plot cannot be drawn.
    pub fn html(&self) -> Result<String> {
        let shown = self.steps.iter().zip(self.texts).zip(self.names).enumerate();
        let tokens: Vec<_> = shown
            .map(|(index, ((step, text), name))| {
                let d = &step.drawn;
                let about = format!(
                    "step {index}: {name} ({})\nP {:.4}, {:.2} bits\nN {}, M {:.4}",
                    d.token, d.probability, d.surprise_bits, d.kept, d.retained_mass
                );
                let class = SURPRISES.iter().rposition(|&s| d.surprise_bits >= s);
                // Special tokens have no text; nor do the first bytes of a character, whose name
                // says nothing to a reader.
                let mark = if name.is_ascii() { name.as_str() } else { "·" };
                let name = text.is_empty().then_some(mark);
                context! { text => text.as_str(), name, class => class.unwrap_or(0), about }
            })
            .collect();
        let legend: Vec<_> = SURPRISES
            .iter()
            .enumerate()
            .map(|(class, &from)| match SURPRISES.get(class + 1) {
                Some(to) => format!("{from} to {to}"),
                None => format!("{from} and more"),
            })
            .collect();

        let of = |f: fn(&Drawn) -> f64| self.steps.iter().map(|s| f(&s.drawn)).collect::<Vec<_>>();
        let (kept, mass) = (of(|d| d.kept.into()), of(|d| d.retained_mass));
        let surprise = of(|d| d.surprise_bits);
        let plots = [
            (
                "Surprise of each token, in bits",
                plot(|area| by_step(area, &surprise, 0.0..(greatest(&surprise) * 1.08).max(1.0)))?,
            ),
            ("N: how many tokens were kept (logarithmic)", plot(|area| kept_by_step(area, &kept))?),
            (
                "M: the share of the probability that they hold",
                plot(|area| mass_by_step(area, &mass))?,
            ),
            ("How often each N occurred", plot(|area| histogram(area, &kept))?),
        ];

        let mut environment = Environment::new();
        environment.add_template("report.html", include_str!("report.html"))?;
        Ok(environment.get_template("report.html")?.render(context! {
            prompt => self.prompt,
            how => self.how,
            end => self.end,
            figures => self.summary.rows(),
            tokens,
            legend,
            plots,
            window => WINDOW,
            build => topmass::build_info(),
        })?)
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn plot(draw: impl FnOnce(&Area<'_>) -> Result<()>) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        draw(&area)?;
        area.present()?;
    }
    Ok(svg)
}

fn greatest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

/// A point for each step, and their running median.
macro_rules! points {
    ($area:expr, $values:expr, $range:expr, $label:expr) => {{
        let values: &[f64] = $values;
        let mut chart = ChartBuilder::on($area)
            .margin(10)
            .margin_right(20)
            .x_label_area_size(32)
            .y_label_area_size(56)
            .build_cartesian_2d(-0.5..values.len() as f64 - 0.5, $range)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(INK)
            .x_labels(12)
            .y_labels(6)
            .x_label_formatter(&|x| format!("{x:.0}"))
            .y_label_formatter(&$label)
            .label_style(("sans-serif", 13).into_font().color(&INK))
            .draw()?;
        let at = |(i, &y): (usize, &f64)| (i as f64, y);
        let points = values.iter().enumerate().map(at);
        chart.draw_series(points.map(|p| Circle::new(p, 2, POINT.mix(0.7).filled())))?;
        let median = (0..values.len()).map(|i| {
            let near = &values[i.saturating_sub(WINDOW / 2)..values.len().min(i + WINDOW / 2 + 1)];
            (i as f64, quantile(0.5, near.iter().copied()))
        });
        chart.draw_series(LineSeries::new(median, LINE.stroke_width(2)))?;
        Ok(())
    }};
}

fn by_step(area: &Area<'_>, values: &[f64], range: std::ops::Range<f64>) -> Result<()> {
    points!(area, values, range, |y: &f64| format!("{y:.0}"))
}

fn kept_by_step(area: &Area<'_>, kept: &[f64]) -> Result<()> {
    // From below 1, so that decided steps stand clear of the axis.
    let range = (0.7..(greatest(kept) * 1.5).max(12.0)).log_scale();
    points!(area, kept, range, |y: &f64| format!("{y:.0}"))
}

fn mass_by_step(area: &Area<'_>, mass: &[f64]) -> Result<()> {
    let least = mass.iter().copied().fold(1.0, f64::min);
    let room = ((1.0 - least) * 0.08).max(0.002);
    points!(area, mass, least - room..1.0 + room, |y: &f64| format!("{y:.3}"))
}

/// Bars for N = 1, 2, 3 to 4, 5 to 8, and so on.
fn histogram(area: &Area<'_>, kept: &[f64]) -> Result<()> {
    let bin = |n: f64| n.max(1.0).log2().ceil() as usize;
    let mut counts = vec![0_u32; bin(greatest(kept)) + 1];
    kept.iter().for_each(|&n| counts[bin(n)] += 1);
    let most = counts.iter().copied().max().unwrap_or(0).max(1);

    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .margin_right(20)
        .x_label_area_size(32)
        .y_label_area_size(56)
        .build_cartesian_2d((0..counts.len() - 1).into_segmented(), 0.0..f64::from(most) * 1.15)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(INK)
        .x_labels(counts.len())
        .y_labels(6)
        .x_label_formatter(&|segment| match segment {
            SegmentValue::CenterOf(0) => "1".into(),
            SegmentValue::CenterOf(1) => "2".into(),
            SegmentValue::CenterOf(bin) if *bin > 10 => format!("to {}k", 1_u64 << (bin - 10)),
            SegmentValue::CenterOf(bin) => format!("{}-{}", (1_u64 << (bin - 1)) + 1, 1_u64 << bin),
            _ => String::new(),
        })
        .y_label_formatter(&|y| format!("{y:.0}"))
        .label_style(("sans-serif", 13).into_font().color(&INK))
        .draw()?;
    let bars = counts.iter().enumerate().map(|(bin, &count)| {
        let (left, right) = (SegmentValue::Exact(bin), SegmentValue::Exact(bin + 1));
        let mut bar = Rectangle::new([(left, 0.0), (right, count.into())], POINT.filled());
        bar.set_margin(0, 0, 3, 3);
        bar
    });
    chart.draw_series(bars)?;
    let numbers =
        counts.iter().enumerate().filter(|(_, count)| **count > 0).map(|(bin, &count)| {
            let style = ("sans-serif", 13).into_font().color(&INK);
            let centre = plotters::style::text_anchor::Pos::new(
                plotters::style::text_anchor::HPos::Center,
                plotters::style::text_anchor::VPos::Bottom,
            );
            let at = (SegmentValue::CenterOf(bin), f64::from(count) + f64::from(most) * 0.02);
            Text::new(count.to_string(), at, style.pos(centre))
        });
    chart.draw_series(numbers)?;
    Ok(())
}
