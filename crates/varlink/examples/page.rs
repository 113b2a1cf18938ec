//! Writes the page about an interface definition:
//! `cargo run -p sheave-varlink --example page INTERFACE PAGE`, with `crates/daemon/src/api/io.sheave.Control.varlink`
//! and `docs/reference/control.md`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(from), Some(to)) = (args.next(), args.next()) else {
        return Err("usage: page FILE.varlink PAGE.md".into());
    };
    let interface = sheave_varlink::idl::parse(&std::fs::read_to_string(from)?)?;
    Ok(std::fs::write(to, interface.page())?)
}
