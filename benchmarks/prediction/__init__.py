"""Fit predictions to public measurements, and hold them to measurements that no fit used."""
