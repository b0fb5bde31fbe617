package dputest

// DeviceParts are the names of the parts that each kind of device runs through.
func DeviceParts() []string {
	var names []string
	for _, p := range deviceParts() {
		names = append(names, p.name)
	}
	return names
}
