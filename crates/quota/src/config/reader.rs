//! Reads JSON values into types, and records what is wrong with them instead of stopping at it.
//!
//! Every method that returns `None` has recorded a fault.

use std::cell::RefCell;
use std::ops::RangeInclusive;

use serde_json::Value;

use super::fault::{self, Fault, Faults};
use super::object::Object;
use super::suggest;

/// The path of the whole configuration.
pub(super) const ROOT: &str = "configuration";

/// Where faults and warnings are collected.
#[derive(Default)]
pub(super) struct Collector {
    faults: RefCell<Vec<Fault>>,
    warnings: RefCell<Vec<Fault>>,
}

/// A value and its place.
#[derive(Clone)]
pub(super) struct Node<'a> {
    path: String,
    value: &'a Value,
    faults: &'a Collector,
}

/// A kind of names of up to 64 bytes.
#[derive(Clone, Copy)]
pub(super) struct Names {
    /// Whether a byte may be part of one.
    pub(super) allowed: fn(u8) -> bool,
    /// The same as text.
    pub(super) pattern: &'static str,
}

impl Collector {
    /// `value`, or the faults where any was recorded; and the warnings.
    pub(super) fn finish<T>(self, value: Option<T>) -> Result<(T, Box<[Fault]>), Faults> {
        let (faults, warnings) = (self.faults.into_inner(), self.warnings.into_inner().into());
        match value {
            Some(value) if faults.is_empty() => Ok((value, warnings)),
            None if faults.is_empty() => Err(Faults::one(ROOT, "cannot be read")),
            _ => Err(Faults::new(faults, warnings)),
        }
    }
}

impl<'a> Node<'a> {
    pub(super) fn root(value: &'a Value, faults: &'a Collector) -> Self {
        Self { path: String::new(), value, faults }
    }

    /// Records a fault of this value.
    pub(super) fn fault(&self, message: impl Into<String>) {
        self.faults.faults.borrow_mut().push(self.here(message.into()));
    }

    /// Records that this value is allowed and probably not what was meant.
    pub(super) fn warn(&self, message: impl Into<String>) {
        self.faults.warnings.borrow_mut().push(self.here(message.into()));
    }

    fn here(&self, message: String) -> Fault {
        let path = if self.path.is_empty() { ROOT } else { &self.path };
        Fault { path: path.to_owned(), message }
    }

    /// Records that it is of the wrong type or out of bounds: the value itself may be secret.
    pub(super) fn must<T>(&self, be: &str) -> Option<T> {
        self.fault(format!("must be {be}, is {}", kind(self.value)));
        None
    }

    /// Where it is.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn value(&self) -> &'a Value {
        self.value
    }

    pub(super) fn object(&self) -> Option<Object<'a>> {
        match self.value {
            Value::Object(fields) => Some(Object::new(self.clone(), fields)),
            _ => self.must("an object"),
        }
    }

    /// The members of an object whose names the configuration chooses.
    pub(super) fn members(&self, most: usize) -> Option<Vec<(&'a str, Self)>> {
        let Value::Object(fields) = self.value else {
            return self.must("an object");
        };
        self.at_most(fields.len(), most)?;
        Some(fields.iter().map(|(name, value)| (name.as_str(), self.member(name, value))).collect())
    }

    /// The elements of a list.
    pub(super) fn list(&self, most: usize) -> Option<Vec<Self>> {
        let Value::Array(values) = self.value else {
            return self.must("a list");
        };
        self.at_most(values.len(), most)?;
        let elements = values.iter().enumerate();
        Some(elements.map(|(i, value)| Self { value, ..self.element(i) }).collect())
    }

    /// Every element of a list, read.
    pub(super) fn each<T>(&self, most: usize, read: impl FnMut(&Self) -> Option<T>) -> Option<Vec<T>> {
        // Every element is read, also behind one that is at fault.
        let read: Vec<Option<T>> = self.list(most)?.iter().map(read).collect();
        read.into_iter().collect()
    }

    /// Every element of a list that has some, read.
    pub(super) fn some<T>(&self, most: usize, read: impl FnMut(&Self) -> Option<T>) -> Option<Vec<T>> {
        let elements = self.each(most, read)?;
        if elements.is_empty() {
            self.fault("must not be empty");
            return None;
        }
        Some(elements)
    }

    /// Records every element that is the same as an earlier one.
    pub(super) fn distinct<T: PartialEq>(&self, elements: Vec<T>) -> Option<Vec<T>> {
        let mut distinct = true;
        for (i, element) in elements.iter().enumerate() {
            if let Some(first) = elements.iter().take(i).position(|earlier| earlier == element) {
                self.element(i).fault(format!("is the same as {}", self.element(first).path));
                distinct = false;
            }
        }
        distinct.then_some(elements)
    }

    pub(super) fn string(&self) -> Option<&'a str> {
        match self.value {
            Value::String(text) => Some(text),
            Value::Number(_) | Value::Bool(_) => self.must("a string (in YAML, put it in quotes)"),
            _ => self.must("a string"),
        }
    }

    /// A string that is not empty.
    pub(super) fn text(&self) -> Option<&'a str> {
        let text = self.string()?;
        if text.is_empty() {
            self.fault("must not be empty");
            return None;
        }
        Some(text)
    }

    /// That `text`, which is this value, has at most `most` bytes.
    pub(super) fn no_longer_than(&self, text: &str, most: usize) -> Option<()> {
        if text.len() > most {
            self.fault(format!("must be at most {most} bytes long"));
            return None;
        }
        Some(())
    }

    /// A name of the given kind.
    pub(super) fn name(&self, names: Names) -> Option<&'a str> {
        let text = self.string()?;
        if names.accept(text) {
            return Some(text);
        }
        self.fault(format!("must match {}, is {text:?}", names.pattern));
        None
    }

    pub(super) fn boolean(&self) -> Option<bool> {
        match self.value {
            Value::Bool(value) => Some(*value),
            _ => self.must("true or false"),
        }
    }

    /// A whole number, written as an integer, as a float without fraction, or as a string of digits.
    pub(super) fn whole(&self, range: RangeInclusive<u64>) -> Option<u64> {
        let number = match self.value {
            Value::Number(number) => number.as_u64().or_else(|| from_float(number.as_f64()?)),
            Value::String(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => digits.parse().ok(),
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

    /// One of some words.
    pub(super) fn choice<T: Copy>(&self, words: &[(&'static str, T)]) -> Option<T> {
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

    /// A number as it is, of anything else the kind.
    pub(super) fn shown(&self) -> String {
        match self.value {
            Value::Number(number) => number.to_string(),
            other => kind(other).to_owned(),
        }
    }

    fn element(&self, i: usize) -> Self {
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
    pub(super) fn member(&self, name: &str, value: &'a Value) -> Self {
        Self { path: fault::member_path(&self.path, name), value, faults: self.faults }
    }
}

impl Names {
    /// Whether `text` is such a name.
    pub(super) fn accept(self, text: &str) -> bool {
        (1..=64).contains(&text.len()) && text.bytes().all(self.allowed)
    }
}

/// The number that `float` is, where it is whole and held exactly.
fn from_float(float: f64) -> Option<u64> {
    let most = crate::protocol::MAX_UNITS as f64;
    (float.fract() == 0.0 && (0.0..=most).contains(&float)).then_some(float as u64)
}

/// What a value is, without telling it: it may be secret.
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
