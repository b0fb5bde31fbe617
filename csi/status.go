package csi

import (
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/volume"
)

// Status is the part "csi" of a driver's /status.
type Status struct {
	Driver     string             `json:"driver"`
	Version    string             `json:"version"`
	Node       string             `json:"node"`
	Services   string             `json:"services"`
	Engine     string             `json:"engine"`
	Pool       string             `json:"pool"` // or other storage of the engine
	Running    []op.Running       `json:"running"`
	Conditions []volume.Condition `json:"conditions"`
	Error      string             `json:"error,omitempty"` // why the conditions are unknown
}
