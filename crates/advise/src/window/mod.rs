//! The windows that quotas are judged for.

mod number;
mod zone;

use std::fmt;

use jiff::tz::TimeZone;
use quotagate_protocol::Unit;
use serde::{Serialize, Serializer};

pub(crate) use self::number::{Numbers, Scale};

use crate::display;
use crate::error::Error;

/// What [`Options::windows`](crate::Options::windows) asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Length {
    /// So many seconds; at least 1.
    Seconds(u32),
    /// A minute, day, month, ... of the calendar in
    /// [`Options::time_zone`](crate::Options::time_zone).
    Calendar(Unit),
}

/// A window as policies know it.
#[derive(Clone, Debug, PartialEq)]
pub enum Window {
    /// Numbered from the Unix epoch: `floor(time / window)`.
    Fixed {
        /// Its length in seconds.
        seconds: u32,
    },
    /// The last so many seconds, in slices of a twentieth.
    Sliding {
        /// Its length in seconds.
        seconds: u32,
    },
    /// From one local minute, midnight, first of the month, ... to the next.
    Calendar {
        /// What the window is.
        unit: Unit,
        /// Where it begins.
        time_zone: TimeZone,
    },
}

impl Window {
    /// The windows of these lengths.
    ///
    /// # Errors
    /// Options that contradict each other, or an unknown time zone.
    pub(crate) fn all(
        lengths: &[Length],
        time_zone: Option<&str>,
        sliding: bool,
    ) -> Result<Vec<Self>, Error> {
        let time_zone = time_zone.map(zone::find).transpose()?;
        let is_calendar = |length: &Length| matches!(length, Length::Calendar(_));
        if time_zone.is_some() && !lengths.iter().any(is_calendar) {
            return Err(Error::Usage(
                "a time zone matters for calendar windows only: use --window day, or leave out \
                 --time-zone"
                    .to_owned(),
            ));
        }
        let time_zone = time_zone.unwrap_or(TimeZone::UTC);
        let window = |length: &Length| match (*length, sliding) {
            (Length::Seconds(0), _) => {
                Err(Error::Usage("a window has at least 1 second".to_owned()))
            }
            (Length::Seconds(seconds), false) => Ok(Self::Fixed { seconds }),
            (Length::Seconds(seconds), true) => Ok(Self::Sliding { seconds }),
            (Length::Calendar(unit), false) => {
                Ok(Self::Calendar { unit, time_zone: time_zone.clone() })
            }
            (Length::Calendar(unit), true) => Err(Error::Usage(format!(
                "a calendar window does not slide: leave out --sliding, or write a length instead \
                 of --window {}",
                unit.name()
            ))),
        };
        lengths.iter().map(window).collect()
    }

    /// A short name for files and policies: `1m`, `day`.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Fixed { seconds } | Self::Sliding { seconds } => display::window(*seconds),
            Self::Calendar { unit, .. } => unit.name().to_owned(),
        }
    }

    /// The fields of a policy with this window, as YAML.
    pub(crate) fn fields(&self) -> Vec<String> {
        match self {
            Self::Fixed { .. } => vec![format!("window: {}", self.name())],
            Self::Sliding { .. } => {
                vec![format!("window: {}", self.name()), "sliding: true".to_owned()]
            }
            Self::Calendar { unit, time_zone } => {
                let (unit, zone) = (unit.name(), zone::name(time_zone));
                vec![format!("window: {{calendar: {unit}, time_zone: {zone}}}")]
            }
        }
    }

    /// The zone in which a person reads the times of this window.
    pub(crate) fn time_zone(&self) -> TimeZone {
        match self {
            Self::Calendar { time_zone, .. } => time_zone.clone(),
            Self::Fixed { .. } | Self::Sliding { .. } => TimeZone::UTC,
        }
    }
}

/// `1m`, `1m (sliding)`, `day (Europe/Berlin)`.
impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())?;
        match self {
            Self::Fixed { .. } => Ok(()),
            Self::Sliding { .. } => f.write_str(" (sliding)"),
            Self::Calendar { time_zone, .. } => write!(f, " ({})", zone::name(time_zone)),
        }
    }
}

impl Serialize for Window {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(untagged)]
        enum Written<'a> {
            Fixed { window_s: u32 },
            Sliding { window_s: u32, sliding: bool },
            Calendar { calendar: &'a str, time_zone: &'a str },
        }
        match self {
            Self::Fixed { seconds } => Written::Fixed { window_s: *seconds },
            Self::Sliding { seconds } => Written::Sliding { window_s: *seconds, sliding: true },
            Self::Calendar { unit, time_zone } => {
                Written::Calendar { calendar: unit.name(), time_zone: zone::name(time_zone) }
            }
        }
        .serialize(serializer)
    }
}
