//! Compiles `proto/pulsar.proto` in pure Rust: no `protoc` is needed to build Vela.

use std::io::Error;

fn main() -> Result<(), Error> {
    println!("cargo:rerun-if-changed=proto/pulsar.proto");
    let descriptors = protox::compile(["proto/pulsar.proto"], ["proto"]).map_err(Error::other)?;
    // Bytes fields share the frame they were read from instead of copying it.
    prost_build::Config::new().bytes(["."]).compile_fds(descriptors)
}
