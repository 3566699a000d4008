//! What the types promise of reading and writing.

#![expect(clippy::unwrap_used, reason = "tests")]

use serde_json::json;

use super::{AllocatedTask, Deployment, Nothing, PlacementMetrics};

#[test]
fn absent_and_unknown_fields_are_no_errors() {
    let read: Deployment = serde_json::from_value(json!({ "ID": "a", "NewField": [1] })).unwrap();
    assert_eq!(read, Deployment { id: "a".to_owned(), ..Deployment::default() });
}

#[test]
fn a_field_of_the_wrong_type_is_an_error() {
    assert!(serde_json::from_value::<Deployment>(json!({ "JobVersion": "one" })).is_err());
}

#[test]
fn an_empty_map_is_null_where_nomad_has_null() {
    let written = serde_json::to_value(PlacementMetrics::default()).unwrap();
    assert_eq!(written["ClassFiltered"], json!(null));
    assert_eq!(written["NodesAvailable"], json!({}));
}

#[test]
fn a_field_that_is_always_null_passes_over_what_another_server_has_there() {
    let read: AllocatedTask =
        serde_json::from_value(json!({ "Devices": [{ "Vendor": "x" }] })).unwrap();
    assert_eq!(read.devices, Nothing);
    assert_eq!(serde_json::to_value(read.devices).unwrap(), json!(null));
}
