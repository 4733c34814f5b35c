//! Operating over real backends, and the admin address over HTTP.

#![cfg(test)]

#[path = "../../../store/tests/store/acl.rs"]
mod acl;
mod addresses;
mod admin;
mod bounds;
mod cluster;
#[path = "../../../store/tests/store/common.rs"]
mod common;
mod drain;
#[path = "../../../store/tests/store/http.rs"]
mod http;
mod operate;
mod operators;
mod overrides;
mod rights;
mod served;
mod shapes;
mod slow;
