"""Databases with a driver of JDBC: Java, which Spark has anyway, connects; what a statement looks like is
here.
"""
