//! Memory and descriptors of every process over time, and what happened when. Lengths are in
//! pixels.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use plotters::backend::SVGBackend;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::element::{Drawable, PathElement, PointCollection, Text};
use plotters::style::{BLACK, Color, IntoFont, RGBColor, WHITE};

use super::Soaked;
use super::curves::{Curves, Point};

const WIDTH: i32 = 1000;
/// A panel, and the room above each for its title.
const PANEL: i32 = 260;
const HEAD: i32 = 40;
/// From the left edge to the axis, and from the right end of the curves to the right edge.
const LEFT: i32 = 60;
const RIGHT: i32 = 130;
/// A longer gap between two points is a restart, and is not drawn over.
const GAP_S: f64 = 3.0;
const COLOURS: [(&str, RGBColor); 3] = [
    ("Envoy", RGBColor(8, 81, 156)),
    ("store", RGBColor(230, 85, 13)),
    ("Redis", RGBColor(165, 15, 21)),
];

/// The panels and their processes. Each panel has a scale of its own, so that growth of small
/// values is visible.
const PANELS: [Panel; 3] = [
    Panel { title: "resident memory of Envoys, MiB", shows: &["Envoy"], value: |point| point.mib },
    Panel {
        title: "resident memory of stores and Redis, MiB",
        shows: &["store", "Redis"],
        value: |point| point.mib,
    },
    Panel {
        title: "open descriptors",
        shows: &["Envoy", "store", "Redis"],
        value: |point| point.descriptors as f64,
    },
];

struct Panel {
    title: &'static str,
    shows: &'static [&'static str],
    value: fn(&Point) -> f64,
}

impl Panel {
    /// The curves that it shows.
    fn curves<'a>(&self, all: &'a Curves) -> impl Iterator<Item = (&'a str, &'a [Point])> {
        let all = all.iter().map(|(part, points)| (part.as_str(), points.as_slice()));
        all.filter(|(part, _)| self.shows.iter().any(|kind| part.starts_with(kind)))
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws it into a file.
///
/// # Errors
/// When the file cannot be written.
pub fn draw(soaked: &Soaked, file: &Path) -> Result<()> {
    let height = length(PANELS.len()) * (PANEL + HEAD) + 40;
    let root =
        SVGBackend::new(file, (u32::try_from(WIDTH)?, u32::try_from(height)?)).into_drawing_area();
    root.fill(&WHITE).map_err(|error| anyhow!("{error}"))?;
    let canvas = Canvas { area: &root, soaked };
    for (index, panel) in (0..).zip(PANELS) {
        canvas.panel(&panel, HEAD + index * (PANEL + HEAD))?;
    }
    root.present()
        .map_err(|error| anyhow!("{error}"))
        .with_context(|| format!("cannot write {}", file.display()))
}

struct Canvas<'a, 'b> {
    area: &'a Area<'b>,
    soaked: &'a Soaked,
}

impl Canvas<'_, '_> {
    /// One curve a process, from 0 at its bottom; vertical lines are events.
    fn panel(&self, panel: &Panel, top: i32) -> Result<()> {
        let (title, value) = (panel.title, panel.value);
        let seconds = self.soaked.length.as_secs_f64().max(1.0);
        let curves = || panel.curves(&self.soaked.curves);
        let most = curves().flat_map(|(_, points)| points).map(value).fold(1.0, f64::max);
        let x = |at: f64| LEFT + (at / seconds * f64::from(WIDTH - LEFT - RIGHT)) as i32;
        let y = |value: f64| top + PANEL - (value / most * f64::from(PANEL - 10)) as i32;
        self.text(
            &format!("{title}; grey lines are restarts and, dark, failovers"),
            LEFT,
            top - 14,
            16,
        )?;
        for event in &self.soaked.events {
            let at = x(event.span.0.as_secs_f64());
            let dark = if event.loses { 0.5 } else { 0.15 };
            self.draw(&PathElement::new([(at, top), (at, top + PANEL)], BLACK.mix(dark)))?;
        }
        self.draw(&PathElement::new([(LEFT, top), (LEFT, y(0.0)), (x(seconds), y(0.0))], BLACK))?;
        for part in [0.0, 0.5, 1.0] {
            self.text(&format!("{:.0}", most * part), 12, y(most * part), 13)?;
            let minutes = seconds * part / 60.0;
            self.text(&format!("{minutes:.1} min"), x(seconds * part) - 14, top + PANEL + 12, 13)?;
        }
        for (part, points) in curves() {
            let colour = colour(part);
            for run in points.chunk_by(|one, next| next.at - one.at <= GAP_S) {
                let line: Vec<(i32, i32)> =
                    run.iter().map(|point| (x(point.at), y(value(point)))).collect();
                self.draw(&PathElement::new(line, colour.stroke_width(2)))?;
            }
        }
        for (index, (kind, colour)) in
            (0..).zip(COLOURS.iter().filter(|(kind, _)| panel.shows.contains(kind)))
        {
            self.text(kind, WIDTH - RIGHT + 40, top + 12 + 18 * index, 14)?;
            let at = top + 12 + 18 * index;
            let line = [(WIDTH - RIGHT + 12, at), (WIDTH - RIGHT + 34, at)];
            self.draw(&PathElement::new(line, colour.stroke_width(2)))?;
        }
        Ok(())
    }

    fn text(&self, text: &str, x: i32, y: i32, size: i32) -> Result<()> {
        self.draw(&Text::new(text.to_owned(), (x, y - size / 3), ("sans-serif", size).into_font()))
    }

    fn draw<E>(&self, element: &E) -> Result<()>
    where
        for<'e> &'e E: PointCollection<'e, (i32, i32)>,
        E: for<'b> Drawable<SVGBackend<'b>>,
    {
        self.area.draw(element).map_err(|error| anyhow!("{error}"))
    }
}

/// Of a handful of things.
fn length(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// The colour of a part, by its kind.
fn colour(part: &str) -> RGBColor {
    let known = COLOURS.into_iter().find(|(kind, _)| part.starts_with(kind));
    known.map_or(BLACK, |(_, colour)| colour)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::soak::clients::Seen;
    use crate::soak::events::Event;
    use crate::soak::page;

    #[test]
    fn every_process_and_event_is_shown() {
        let point = |at: f64| Point { at, mib: 20.0 + at, descriptors: 9 };
        let mut curves = Curves::new();
        for part in ["Envoy 1", "store 2", "Redis 6"] {
            // With a restart in the middle.
            curves.insert(part.to_owned(), vec![point(0.0), point(1.0), point(50.0), point(51.0)]);
        }
        let span = (Duration::from_secs(2), Duration::from_secs(3));
        let event = Event { what: "a store was restarted", loses: false, span, epoch: (1, 2) };
        let length = Duration::from_secs(60);
        let soaked = Soaked {
            length,
            seen: Seen::default(),
            events: vec![event],
            curves,
            stuck: 0,
            reloads: 0,
        };
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("soak.svg");
        draw(&soaked, &file).unwrap();
        let svg = std::fs::read_to_string(file).unwrap();
        assert!(svg.contains("descriptors") && svg.contains("MiB"));
        // Two panels, each with two pieces and a legend of every process. All three panels have an
        // event and an axis.
        assert_eq!(svg.matches("<polyline").count(), 2 * 3 * (2 + 1) + 3 * 2, "{svg}");
        let page = page::page(&soaked, 1);
        assert!(page.contains("| store 2 | 20.0, 71.0, 71.0 | 9, 9, 9 |"), "{page}");
        assert_eq!(soaked.faults(), ["no window was seen"]);
    }
}
