//! The fuzz targets, over what the integration tests share.

#[path = "../../tests/support/mod.rs"]
mod support;
pub mod targets;
