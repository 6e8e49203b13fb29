"""Stages of a pipeline: their schedule and their share of the layers."""
