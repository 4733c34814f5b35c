//! The report as a picture: for each number of users, throughput beside processor time. Lengths are
//! in pixels.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use plotters::{
    backend::SVGBackend,
    coord::Shift,
    drawing::{DrawingArea, IntoDrawingArea},
    element::{Drawable, PathElement, PointCollection, Rectangle, Text},
    style::{BLACK, Color, IntoFont, RGBColor, ShapeStyle, WHITE},
};

use super::{
    stats::Spread,
    summary::{Group, Row},
};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const WIDTH: i32 = 1200;
/// The space above the bars of a number of users, and between two stacks.
const HEAD: i32 = 70;
const GAP: i32 = 8;
/// A bar, one above another.
const BAR: i32 = 11;
/// How far ranges may reach beyond the longest bar.
const ROOM: f64 = 1.15;
/// Where the bars of throughput and of processor time begin, and how long the longest of each may
/// be.
const RATES: (i32, i32) = (280, 400);
const TIMES: (i32, i32) = (760, 360);
/// The connections whose processor time is shown, or the nearest number below.
const SHOWN_CONNECTIONS: u32 = 32;
/// From one connection to many.
const SHADES: [RGBColor; 4] = [
    RGBColor(158, 202, 225),
    RGBColor(107, 174, 214),
    RGBColor(49, 130, 189),
    RGBColor(8, 81, 156),
];
const PARTS: [(&str, RGBColor); 4] = [
    ("Envoy", RGBColor(49, 130, 189)),
    ("upstream", RGBColor(189, 189, 189)),
    ("store", RGBColor(253, 141, 60)),
    ("Redis", RGBColor(203, 24, 29)),
];

/// Draws the groups into a file. `title` stands above and must fit on one line.
pub fn draw(groups: &[Group], title: &str, file: &Path) -> Result<()> {
    let mut users: Vec<u32> = groups.iter().map(|group| group.load.users).collect();
    users.dedup();
    let panels: Vec<Panel> = users.iter().filter_map(|&users| Panel::of(groups, users)).collect();
    let height = 30 + panels.iter().map(Panel::height).sum::<i32>();
    let root =
        SVGBackend::new(file, (u32::try_from(WIDTH)?, u32::try_from(height)?)).into_drawing_area();
    root.fill(&WHITE).map_err(|error| anyhow!("{error}"))?;
    let canvas = Canvas(&root);
    canvas.text(title, 20, 12, 16)?;
    let mut top = 30;
    for panel in &panels {
        panel.draw(&canvas, top)?;
        top += panel.height();
    }
    root.present()
        .map_err(|error| anyhow!("{error}"))
        .with_context(|| format!("cannot write {}", file.display()))
}

/// What is shown of one number of users.
struct Panel<'a> {
    users: u32,
    groups: Vec<&'a Group>,
    /// The one whose processor time is shown.
    shown: &'a Group,
}

impl<'a> Panel<'a> {
    fn of(groups: &'a [Group], users: u32) -> Option<Self> {
        let groups: Vec<&Group> = groups.iter().filter(|group| group.load.users == users).collect();
        let below = groups.iter().filter(|group| group.load.connections <= SHOWN_CONNECTIONS);
        let shown = below.max_by_key(|group| group.load.connections).or_else(|| groups.first())?;
        Some(Self { users, shown, groups: groups.clone() })
    }

    fn height(&self) -> i32 {
        HEAD + self.step() * length(self.shown.rows.len()) + 20
    }

    /// The distance from one stack to the next.
    fn step(&self) -> i32 {
        BAR * length(self.groups.len()).max(2) + GAP
    }

    fn draw(&self, canvas: &Canvas, top: i32) -> Result<()> {
        let who =
            if self.users == 1 { "one user".to_owned() } else { format!("{} users", self.users) };
        canvas.text(
            &format!("{who}: requests a second, as a ratio to no filter"),
            RATES.0,
            top + 12,
            17,
        )?;
        canvas.text(
            &format!("processor time, µs a request, {}", connections(self.shown)),
            TIMES.0,
            top + 12,
            17,
        )?;
        self.legends(canvas, top + 36)?;
        // A range far beyond all medians is cut, or one disturbed round would make all bars short.
        let rates = self.greatest(|row| row.rate_ratio.median, true) * ROOM;
        let times = self.greatest(|row| row.cpu.all(), false);
        for (index, row) in self.shown.rows.iter().enumerate() {
            let y = top + HEAD + self.step() * length(index);
            canvas.text(&format!("{}  {}", row.stack, row.stack.title()), 20, y + BAR / 2, 15)?;
            for (bar, (group, shade)) in self.groups.iter().zip(SHADES.iter().cycle()).enumerate() {
                let Some(row) = group.rows.iter().find(|other| other.stack == row.stack) else {
                    continue;
                };
                canvas.rate(
                    &row.rate_ratio,
                    RATES.1 as f64 / rates,
                    y + BAR * length(bar),
                    *shade,
                )?;
            }
            canvas.times(row, TIMES.1 as f64 / times, y)?;
        }
        let one = RATES.0 + (RATES.1 as f64 / rates) as i32;
        let bottom = top + HEAD + self.step() * length(self.shown.rows.len()) - GAP;
        canvas.draw(&PathElement::new([(one, top + HEAD - 4), (one, bottom + 4)], BLACK.mix(0.4)))
    }

    fn legends(&self, canvas: &Canvas, y: i32) -> Result<()> {
        let mut x = RATES.0;
        for (group, shade) in self.groups.iter().zip(SHADES.iter().cycle()) {
            x = canvas.legend(&connections(group), *shade, x, y)?;
        }
        let mut x = TIMES.0;
        for (name, colour) in PARTS {
            x = canvas.legend(name, colour, x, y)?;
        }
        Ok(())
    }

    /// The greatest of all bars that share a scale, at least 1.
    fn greatest(&self, value: impl Fn(&Row) -> f64, all: bool) -> f64 {
        let groups = self.groups.iter().filter(|group| all || group.load == self.shown.load);
        groups.flat_map(|group| &group.rows).map(value).fold(1.0, f64::max)
    }
}

struct Canvas<'a, 'b>(&'a Area<'b>);

impl Canvas<'_, '_> {
    fn draw<E>(&self, element: &E) -> Result<()>
    where
        for<'e> &'e E: PointCollection<'e, (i32, i32)>,
        E: for<'b> Drawable<SVGBackend<'b>>,
    {
        self.0.draw(element).map_err(|error| anyhow!("{error}"))
    }

    fn text(&self, text: &str, x: i32, y: i32, size: i32) -> Result<()> {
        self.draw(&Text::new(text.to_owned(), (x, y - size / 3), ("sans-serif", size).into_font()))
    }

    fn bar(&self, x: i32, y: i32, width: i32, height: i32, style: ShapeStyle) -> Result<()> {
        self.draw(&Rectangle::new([(x, y), (x + width, y + height)], style))
    }

    fn legend(&self, text: &str, colour: RGBColor, x: i32, y: i32) -> Result<i32> {
        self.bar(x, y - 5, 10, 10, colour.filled())?;
        self.text(text, x + 14, y, 14)?;
        Ok(x + 30 + 7 * length(text.len()))
    }

    /// A bar as long as the median, the range of the rounds as a line, and the number.
    fn rate(&self, ratio: &Spread, scale: f64, y: i32, colour: RGBColor) -> Result<()> {
        let at = |value: f64| ((value * scale) as i32).min(RATES.1);
        self.bar(RATES.0, y, at(ratio.median), BAR - 2, colour.filled())?;
        let middle = y + BAR / 2 - 1;
        let range = [(RATES.0 + at(ratio.least), middle), (RATES.0 + at(ratio.greatest), middle)];
        self.draw(&PathElement::new(range, BLACK))?;
        self.text(&format!("{:.2}", ratio.median), RATES.0 + at(ratio.greatest) + 4, middle, 12)
    }

    /// The parts one after another, and their sum.
    fn times(&self, row: &Row, scale: f64, y: i32) -> Result<()> {
        let mut x = TIMES.0;
        let parts = [row.cpu.envoy, row.cpu.upstream, row.cpu.store, row.cpu.redis];
        for (time, (_, colour)) in parts.into_iter().zip(PARTS) {
            let width = (time * scale) as i32;
            self.bar(x, y, width, 2 * BAR - 2, colour.filled())?;
            x += width;
        }
        self.text(&format!("{:.0}", row.cpu.all()), x + 4, y + BAR - 1, 14)
    }
}

fn connections(group: &Group) -> String {
    match group.load.connections {
        1 => "1 connection".to_owned(),
        many => format!("{many} connections"),
    }
}

/// Of a handful of things.
fn length(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        report::summary::{groups, tests::sample},
        stacks::Stack,
    };

    #[test]
    fn every_stack_is_in_the_picture() {
        let mut samples = Vec::new();
        for connections in [1, 32, 128] {
            samples.push(sample(Stack::A, connections, 0, 10_000.0));
            samples.push(sample(Stack::I, connections, 0, 12_345.0));
        }
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("p.svg");
        draw(&groups(&samples), "a title", &file).unwrap();
        let svg = std::fs::read_to_string(file).unwrap();
        for part in [
            "<svg",
            "a title",
            Stack::A.title(),
            Stack::I.title(),
            "1.23",
            "32 connections",
            "Redis",
        ] {
            assert!(svg.contains(part), "{part} is not in\n{svg}");
        }
    }
}
