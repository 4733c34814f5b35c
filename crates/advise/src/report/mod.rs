//! The advice for people: as text and as pictures.

mod in_flight;
mod plot;
mod text;
