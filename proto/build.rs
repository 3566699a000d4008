//! Compiles the `.proto` files with protox: no system protoc is needed. Maps keep their order, so that equal messages have equal bytes.
use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    let files = ["words.proto", "raft.proto", "scheduler.proto", "agent.proto", "cluster.proto"];
    let files = files.map(|f| format!("quorate/v1/{f}"));
    let for_clients = "quorate/capacity/v1/capacity.proto".to_owned();
    let for_collectors = "opentelemetry/trace.proto".to_owned();
    let files = files.into_iter().chain([for_clients, for_collectors]);
    let descriptors = protox::compile(files, ["."])?;
    let path = PathBuf::from(env::var("OUT_DIR")?).join("quorate_descriptor.bin");
    fs::write(path, descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .codec_path("crate::codec::CountingCodec")
        .bytes(".")
        .btree_map(".")
        .compile_fds(descriptors)?;
    println!("cargo:rerun-if-changed=quorate");
    println!("cargo:rerun-if-changed=opentelemetry");
    Ok(())
}
