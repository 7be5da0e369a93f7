"""Checks of other people's routers: `check_router(MyRouter)` holds one to the contract that all of tanbr's keep."""

from tanbr.testing.router import CHECKS, check_learns, check_router

__all__ = ["CHECKS", "check_learns", "check_router"]
