//! The live page in headless Chromium.

mod axe;
mod documents;
mod environment;
mod finding;
mod fleet;
mod guarded;
mod hostile;
mod keyboard;
mod looks;
mod party;
mod policy;
mod stream;
mod words;
