//go:build ceph

package ceph

import (
	"log/slog"

	"github.com/cleatproject/cleat/internal/cephconf"
)

// Config is what an engine serves.
type Config struct {
	Cluster     cephconf.Cluster
	Credentials cephconf.Credentials
	// Pools are the pools of volumes; the first one also has the state of the
	// controller.
	Pools []string
	// nil: no background events
	Logger *slog.Logger
}
