//! The advice for people: as text and as pictures.

mod plot;
mod text;
