//! A JSON value with its path, and the faults and warnings of a document.
//!
//! Every method that returns `None` has recorded a fault, unless it says otherwise.

use std::cell::RefCell;
use std::ops::RangeInclusive;

use serde_json::Value;

use super::fault::{self, Fault, Faults};
use super::suggest;

/// The path of the whole configuration.
pub(crate) const ROOT: &str = "configuration";

/// The faults and warnings found so far.
#[derive(Default)]
pub(crate) struct Collector {
    is_published: bool,
    faults: RefCell<Vec<Fault>>,
    warnings: RefCell<Vec<Fault>>,
}

/// A value and its path.
#[derive(Clone)]
pub(crate) struct Node<'a> {
    path: String,
    value: &'a Value,
    faults: &'a Collector,
}

impl Collector {
    /// Of a document that operators publish.
    pub(crate) fn of_published() -> Self {
        Self { is_published: true, ..Self::default() }
    }

    /// `value` and the warnings, or all faults if there are any.
    pub(crate) fn finish<T>(self, value: Option<T>) -> Result<(T, Box<[Fault]>), Faults> {
        let (faults, warnings) = (self.faults.into_inner(), self.warnings.into_inner().into());
        match value {
            Some(value) if faults.is_empty() => Ok((value, warnings)),
            None if faults.is_empty() => Err(Faults::one(ROOT, "cannot be read")),
            _ => Err(Faults::new(faults, warnings)),
        }
    }
}

impl<'a> Node<'a> {
    /// The whole document.
    pub(crate) fn root(value: &'a Value, faults: &'a Collector) -> Self {
        Self { path: String::new(), value, faults }
    }

    /// Records a fault of this value.
    pub(crate) fn fault(&self, message: impl Into<String>) {
        self.faults.faults.borrow_mut().push(self.here(message.into()));
    }

    /// Records that this value is allowed but probably not what was meant.
    pub(crate) fn warn(&self, message: impl Into<String>) {
        self.faults.warnings.borrow_mut().push(self.here(message.into()));
    }

    /// Records that this value is a secret in clear: a fault of a document that is published, since
    /// Redis keeps those and stores show them, and a warning in every other one.
    pub(crate) fn exposes(&self, message: &str) {
        if self.faults.is_published {
            self.fault(message);
        } else {
            self.warn(message);
        }
    }

    fn here(&self, message: String) -> Fault {
        let path = if self.path.is_empty() { ROOT } else { &self.path };
        Fault { path: path.to_owned(), message }
    }

    /// Records that the value must be something else. Only its type is shown, since it may be
    /// secret.
    pub(crate) fn must<T>(&self, be: &str) -> Option<T> {
        self.fault(format!("must be {be}, is {}", kind(self.value)));
        None
    }

    /// Its path in the document.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// The value itself.
    pub(crate) fn value(&self) -> &'a Value {
        self.value
    }

    /// The members of an object whose names the configuration chooses.
    pub(crate) fn members(&self, most: usize) -> Option<Vec<(&'a str, Self)>> {
        let Value::Object(fields) = self.value else {
            return self.must("an object");
        };
        self.at_most(fields.len(), most)?;
        Some(fields.iter().map(|(name, value)| (name.as_str(), self.member(name, value))).collect())
    }

    /// The elements of a list.
    pub(crate) fn list(&self, most: usize) -> Option<Vec<Self>> {
        let Value::Array(values) = self.value else {
            return self.must("a list");
        };
        self.at_most(values.len(), most)?;
        let elements = values.iter().enumerate();
        Some(elements.map(|(i, value)| Self { value, ..self.element(i) }).collect())
    }

    /// Records every element that is the same as an earlier one.
    pub(crate) fn distinct<T: PartialEq>(&self, elements: Vec<T>) -> Option<Vec<T>> {
        let mut distinct = true;
        for (i, element) in elements.iter().enumerate() {
            if let Some(first) = elements.iter().take(i).position(|earlier| earlier == element) {
                self.element(i).fault(format!("is the same as {}", self.element(first).path));
                distinct = false;
            }
        }
        distinct.then_some(elements)
    }

    /// A string.
    pub(crate) fn string(&self) -> Option<&'a str> {
        match self.value {
            Value::String(text) => Some(text),
            Value::Number(_) | Value::Bool(_) => self.must("a string (in YAML, put it in quotes)"),
            _ => self.must("a string"),
        }
    }

    /// A string that is not empty.
    pub(crate) fn text(&self) -> Option<&'a str> {
        let text = self.string()?;
        if text.is_empty() {
            self.fault("must not be empty");
            return None;
        }
        Some(text)
    }

    /// Records a fault if `text`, the text of this value, has more than `most` bytes.
    pub(crate) fn no_longer_than(&self, text: &str, most: usize) -> Option<()> {
        if text.len() > most {
            self.fault(format!("must be at most {most} bytes long"));
            return None;
        }
        Some(())
    }

    /// A boolean.
    pub(crate) fn boolean(&self) -> Option<bool> {
        match self.value {
            Value::Bool(value) => Some(*value),
            _ => self.must("true or false"),
        }
    }

    /// A whole number, written as an integer, as a float without fraction, or as a string of
    /// digits.
    pub(crate) fn whole(&self, range: RangeInclusive<u64>) -> Option<u64> {
        let number = match self.value {
            Value::Number(number) => number.as_u64().or_else(|| whole_from_float(number.as_f64()?)),
            Value::String(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => {
                digits.parse().ok()
            }
            _ => None,
        };
        match number {
            Some(number) if range.contains(&number) => Some(number),
            _ => {
                let (least, most, is) = (range.start(), range.end(), self.shown());
                self.fault(format!("must be a whole number from {least} to {most}, is {is}"));
                None
            }
        }
    }

    /// A number, perhaps with a fraction, or a string of one. Records no fault.
    pub(crate) fn decimal(&self) -> Option<f64> {
        let decimal = |text: &&str| text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        let written = || self.value.as_str().filter(decimal)?.parse().ok();
        self.value.as_f64().or_else(written)
    }

    /// The choice that this word stands for.
    pub(crate) fn choice<T: Copy>(&self, words: &[(&'static str, T)]) -> Option<T> {
        let text = self.value.as_str();
        if let Some((_, choice)) = words.iter().find(|(word, _)| text == Some(word)) {
            return Some(*choice);
        }
        let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        let words = suggest::alternatives(&words);
        match text {
            Some(text) => self.fault(format!("must be {words}, is {text:?}")),
            None => return self.must(&words),
        }
        None
    }

    /// The value if it is a number, else its type.
    pub(crate) fn shown(&self) -> String {
        match self.value {
            Value::Number(number) => number.to_string(),
            other => kind(other).to_owned(),
        }
    }

    /// The path of the element `i` of this list.
    pub(crate) fn element(&self, i: usize) -> Self {
        Self { path: fault::element_path(&self.path, i), ..self.clone() }
    }

    fn at_most(&self, len: usize, most: usize) -> Option<()> {
        if len > most {
            self.fault(format!("must have at most {most} entries, has {len}"));
            return None;
        }
        Some(())
    }

    /// The member `name` of this object.
    pub(crate) fn member(&self, name: &str, value: &'a Value) -> Self {
        Self { path: fault::member_path(&self.path, name), value, faults: self.faults }
    }

    /// The member `name` of this object, `null` if the object has no such member.
    pub(crate) fn field(&self, name: &str) -> Self {
        self.member(name, self.value.get(name).unwrap_or(&Value::Null))
    }

    /// Whether this object has a member `name`.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.value.get(name).is_some()
    }
}

/// The whole number that `float` holds exactly.
pub(crate) fn whole_from_float(float: f64) -> Option<u64> {
    let most = quotagate_protocol::MAX_UNITS as f64;
    (float.fract() == 0.0 && (0.0..=most).contains(&float)).then_some(float as u64)
}

/// The type of a value in words. The value itself may be secret.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(true) => "true",
        Value::Bool(false) => "false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
