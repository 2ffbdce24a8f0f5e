"""Transcriptions of published algorithms that share no code with refopt."""
