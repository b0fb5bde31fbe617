package cephmount

// For tests.
var (
	ParseStatus = parseStatus
	IsClient    = isClient
	Explain     = Spec.explain
	Options     = Spec.options
	Check       = Spec.check
)
