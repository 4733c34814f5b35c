//! How answers of the store are shown: tables, sentences, JSON.

mod output;
mod slots;
mod table;
mod words;

pub(crate) use self::output::{Output, say};
pub(crate) use self::slots::{MAX_PROXIES, capital, holders, used};
pub(crate) use self::table::{Table, Weight};
pub(crate) use self::words::{
    allows, at_most, covered, debt, end, ends, full, mode, on_failure, quota, weight, window,
    without_effect,
};
