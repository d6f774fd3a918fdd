"""Real US cities with their state and coordinates (degrees), grouped so that every listed state offers several cities."""

from __future__ import annotations

CITIES: dict[str, tuple[tuple[str, float, float], ...]] = {
    "Texas": (
        ("Houston", 29.76, -95.37), ("Dallas", 32.78, -96.80), ("Austin", 30.27, -97.74), ("El Paso", 31.76, -106.49),
        ("Lubbock", 33.58, -101.86), ("Amarillo", 35.20, -101.83), ("Laredo", 27.51, -99.51),
    ),
    "California": (
        ("Fresno", 36.74, -119.78), ("Oakland", 37.80, -122.27), ("San Diego", 32.72, -117.16),
        ("Sacramento", 38.58, -121.49), ("Bakersfield", 35.37, -119.02), ("Eureka", 40.80, -124.16),
    ),
    "Florida": (
        ("Tampa", 27.95, -82.46), ("Orlando", 28.54, -81.38), ("Miami", 25.76, -80.19), ("Pensacola", 30.42, -87.22),
        ("Tallahassee", 30.44, -84.28), ("Jacksonville", 30.33, -81.66),
    ),
    "Ohio": (
        ("Columbus", 39.96, -83.00), ("Cleveland", 41.50, -81.69), ("Dayton", 39.76, -84.19), ("Toledo", 41.65, -83.54),
        ("Akron", 41.08, -81.52),
    ),
    "Colorado": (
        ("Denver", 39.74, -104.99), ("Durango", 37.28, -107.88), ("Pueblo", 38.25, -104.61), ("Aspen", 39.19, -106.82),
    ),
    "Georgia": (
        ("Atlanta", 33.75, -84.39), ("Savannah", 32.08, -81.09), ("Augusta", 33.47, -81.97), ("Macon", 32.84, -83.63),
    ),
    "Oregon": (
        ("Portland", 45.52, -122.68), ("Eugene", 44.05, -123.09), ("Medford", 42.33, -122.88), ("Bend", 44.06, -121.32),
    ),
    "Nevada": (("Reno", 39.53, -119.81), ("Las Vegas", 36.17, -115.14), ("Elko", 40.83, -115.76)),
    "Utah": (("Salt Lake City", 40.76, -111.89), ("Provo", 40.23, -111.66), ("Moab", 38.57, -109.55)),
    "Minnesota": (("Duluth", 46.79, -92.10), ("Rochester", 44.01, -92.48), ("Bemidji", 47.47, -94.88)),
    "Tennessee": (("Memphis", 35.15, -90.05), ("Nashville", 36.16, -86.78), ("Knoxville", 35.96, -83.92)),
    "Illinois": (("Chicago", 41.88, -87.63), ("Peoria", 40.69, -89.59), ("Moline", 41.51, -90.52)),
    "Montana": (("Billings", 45.78, -108.50), ("Missoula", 46.87, -113.99), ("Helena", 46.59, -112.04)),
    "Louisiana": (("New Orleans", 29.95, -90.07), ("Shreveport", 32.53, -93.75), ("Lafayette", 30.22, -92.02)),
}  # fmt: skip
"""State -> (city, latitude, longitude)."""

FIRST = (
    "Amber", "Atlas", "Birch", "Blue", "Bold", "Brass", "Cedar", "Clover", "Cobalt", "Copper", "Coral", "Crimson", "Daisy",
    "Dusty", "Early", "Ember", "Fern", "Flint", "Gentle", "Gilded", "Golden", "Granite", "Grand", "Hazel", "Hidden", "Honey",
    "Indigo", "Iron", "Ivory", "Jade", "Juniper", "Laurel", "Lively", "Lunar", "Maple", "Marble", "Merry", "Misty", "Noble",
    "Olive", "Opal", "Pearl", "Plum", "Quiet", "Royal", "Ruby", "Rustic", "Saffron", "Silver", "Sunny", "Tidal", "Velvet",
    "Violet", "Walnut", "Wild", "Willow", "Windy", "Winter",
)  # fmt: skip
RESTAURANT = (
    "Bistro", "Cantina", "Diner", "Fork", "Grill", "Kettle", "Kitchen", "Ladle", "Oven", "Pantry", "Plate", "Skillet",
    "Spoon", "Table", "Tavern",
)  # fmt: skip
HOTEL = ("Cabin", "Cottage", "Den", "Flat", "House", "Inn", "Loft", "Lodge", "Nest", "Retreat", "Studio", "Suite")
SIGHT = (
    "Arboretum",
    "Bridge",
    "Falls",
    "Fort",
    "Gallery",
    "Garden",
    "Harbor",
    "Museum",
    "Overlook",
    "Park",
    "Tower",
    "Zoo",
)
CUISINES = ("American", "Chinese", "French", "Indian", "Italian", "Mediterranean", "Mexican")
"""The seven cuisines that TravelPlanner queries ask for."""
EXTRA_CUISINES = ("BBQ", "Bakery", "Cafe", "Desserts", "Fast Food", "Pizza", "Seafood", "Tea")
ROOM_TYPES = ("Entire home/apt", "Private room", "Shared room")
HOUSE_RULES = ("No parties", "No smoking", "No children under 10", "No pets", "No visitors")
