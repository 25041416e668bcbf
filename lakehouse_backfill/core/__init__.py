"""What the product decides, by capability: each verb stands beside the decisions that it makes."""
