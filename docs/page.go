package docs

import _ "embed"

// Troubleshooting is the page of symptoms on Kubernetes: its tables have messages,
// their causes and what to do.
//
//go:embed troubleshooting.md
var Troubleshooting string
