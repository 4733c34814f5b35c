//! The advice as a picture: the shares that a quota refuses, on logarithmic axes.

use std::iter::once;

use plotters::backend::SVGBackend;
use plotters::chart::ChartBuilder;
use plotters::coord::combinators::IntoLogRange;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::element::{Circle, PathElement, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{BLACK, Color, IntoFont, RGBColor, ShapeStyle, WHITE};

use crate::advice::{Advice, Candidate, WindowAdvice};
use crate::display::{number, percent, shown};

const SIZE: (u32, u32) = (900, 520);
/// Colours that also differ in lightness. The picture has a white background, for dark pages.
const USERS: RGBColor = RGBColor(8, 81, 156);
const WINDOWS: RGBColor = RGBColor(217, 95, 2);
const MARK: RGBColor = RGBColor(35, 132, 67);

type Share = fn(&Candidate) -> f64;
type Drawn<'a> = Result<
    (),
    DrawingAreaErrorKind<<SVGBackend<'a> as plotters::backend::DrawingBackend>::ErrorType>,
>;

impl Advice {
    /// The pictures as SVG: one for each window, with its short name.
    ///
    /// # Errors
    /// A sentence, if a picture cannot be drawn.
    pub fn plots(&self) -> Result<Vec<(String, String)>, String> {
        let plot = |of: &WindowAdvice| {
            let mut text = String::new();
            let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
            self.draw(of, &area).map_err(|error| error.to_string())?;
            drop(area);
            Ok((of.window.name(), text))
        };
        self.windows.iter().map(plot).collect()
    }

    fn draw<'a>(
        &self,
        of: &WindowAdvice,
        area: &DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
    ) -> Drawn<'a> {
        area.fill(&WHITE)?;
        let right = f64::from(of.curve.last().map_or(1, |last| last.quota)).max(10.0);
        let shares =
            of.curve.iter().flat_map(|point| [point.users_share, point.user_windows_share]);
        let least =
            shares.filter(|share| *share > 0.0).fold(self.limits.windows.max(1e-9), f64::min);
        let bottom = 10_f64.powf((least / 1.5).log10().floor()).max(1e-9);
        let mut chart = ChartBuilder::on(area)
            .margin(20)
            // Room for half of the last number on the axis.
            .margin_right(50)
            .caption(self.title(of), ("sans-serif", 18))
            .x_label_area_size(45)
            .y_label_area_size(70)
            .build_cartesian_2d((1.0..right * 1.3).log_scale(), (bottom..1.5).log_scale())?;
        chart
            .configure_mesh()
            .x_desc(format!("quota: requests per {}", of.window))
            .y_desc("share refused")
            .x_label_formatter(&|quota| number(*quota as u64))
            .y_label_formatter(&|share| percent(*share))
            .label_style(("sans-serif", 14))
            .bold_line_style(BLACK.mix(0.15))
            .light_line_style(BLACK.mix(0.05))
            .draw()?;

        let best = f64::from(of.recommended.quota);
        let style = |colour: RGBColor, width| ShapeStyle::from(&colour).stroke_width(width);
        chart.draw_series(once(PathElement::new([(best, bottom), (best, 1.5)], style(MARK, 2))))?;
        let curves: [(RGBColor, &str, f64, Share); 2] = [
            (USERS, "users", self.limits.users, |point| point.users_share),
            (WINDOWS, "user-windows", self.limits.windows, |point| point.user_windows_share),
        ];
        for (colour, name, limit, share) in curves {
            let line =
                of.curve.iter().map(|point| (f64::from(point.quota), share(point).max(bottom)));
            let line: Vec<(f64, f64)> = line.collect();
            let first = line.first().copied().unwrap_or((1.0, 1.0));
            chart.draw_series(once(PathElement::new(line, style(colour, 3))))?;
            let above = share(&of.recommended).max(bottom);
            chart.draw_series(once(Circle::new((best, above), 5, colour.filled())))?;
            // A dashed line for the limit.
            let dashes = (0..60).map(|i| right.powf(f64::from(i) / 60.0));
            let dash = |from: f64| {
                PathElement::new(
                    [(from, limit), (from * right.powf(0.008), limit)],
                    style(colour, 1),
                )
            };
            chart.draw_series(dashes.map(dash))?;
            let text = format!("{name}: less than {}", percent(limit));
            let font = ("sans-serif", 14).into_font().color(&colour);
            chart.draw_series(once(Text::new(text, (first.0 * 1.04, limit * 0.93), font)))?;
        }
        let said = format!("{} per {}", number(of.recommended.quota), of.window);
        // On the side of the line with more room.
        let (at, side) = if best > right.sqrt() {
            (best / 1.04, HPos::Right)
        } else {
            (best * 1.04, HPos::Left)
        };
        let style = ("sans-serif", 16).into_font().color(&MARK).pos(Pos::new(side, VPos::Top));
        chart.draw_series(once(Text::new(said, (at, 1.3), style)))?;
        legend(area)?;
        area.present()
    }

    fn title(&self, of: &WindowAdvice) -> String {
        let policy = self
            .policy
            .as_deref()
            .map(|policy| format!("{}: ", shown(policy.as_bytes())))
            .unwrap_or_default();
        format!(
            "{policy}what quotas would have refused of {} users in {} user-windows",
            number(of.users),
            number(of.user_windows)
        )
    }
}

fn legend<'a>(area: &DrawingArea<SVGBackend<'a>, plotters::coord::Shift>) -> Drawn<'a> {
    for (row, (name, colour)) in
        (0..).zip([("users refused", USERS), ("user-windows refused", WINDOWS)])
    {
        let (left, y) = (110, 385 + 22 * row);
        area.draw(&PathElement::new(
            [(left, y + 6), (left + 24, y + 6)],
            ShapeStyle::from(&colour).stroke_width(3),
        ))?;
        area.draw(&Text::new(name, (left + 32, y), ("sans-serif", 14).into_font().color(&BLACK)))?;
    }
    Ok(())
}
