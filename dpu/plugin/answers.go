package plugin

import "errors"

var (
	// ErrAbsent: the volume has no device of that name that SNAP holds now.
	ErrAbsent = errors.New("there is no such device")
	// ErrUnserved: the SNAP process cannot do what the volume mode needs.
	ErrUnserved = errors.New("this SNAP process cannot serve it")
)

// Offer is what the SNAP process can be given devices of.
type Offer struct {
	Block      bool `json:"block"`
	Filesystem bool `json:"filesystem"`
}
