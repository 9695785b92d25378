"""Fit predictions to public measurements, and compare them with measurements that no fit used."""
