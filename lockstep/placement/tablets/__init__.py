"""Tables that are spread by tablets: their maps, what decides how many tablets there are and where they lie.

Owns: tablet maps and their changes, options and counts of tablets, load as the planner sees it, replicas of
new tables, plans of moves, and decisions to split and to merge. Invariant: everything is a function of maps,
nodes and statistics, so a plan that is made twice from the same values is the same; a plan changes nothing,
it says what the log is to change. Neighbours: imports values, schema and the rest of placement; topology
runs the transitions, metadata holds the maps.
"""

from lockstep.placement.tablets.allocate import allocate as allocate
from lockstep.placement.tablets.balancer import plan as plan
from lockstep.placement.tablets.counts import counts as counts
from lockstep.placement.tablets.explain import explain as explain
from lockstep.placement.tablets.map import TabletMap as TabletMap
from lockstep.placement.tablets.map import map_of as map_of
