//! A stand-in inference engine.
