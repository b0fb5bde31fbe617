package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/kubelet/register"
)

const kubeletRegistry = "/var/lib/kubelet/plugins_registry"

// announcedVersion is what every registrar says of a CSI driver; see
// register.Plugin.
const announcedVersion = "1.0.0"

func (f csiFlags) checkRegistration() error {
	switch {
	case f.registrationDir == "" && f.announced != "":
		return errors.New("--registration-endpoint is of no use without --registration-dir")
	case f.registrationDir != "" && f.services == "controller":
		return errors.New("--registration-dir is for a process with the node service, which a kubelet calls; this one has --services controller")
	}
	return nil
}

// registrar makes what registers the driver, or nil when nobody asked for it.
func (f csiFlags) registrar(logger *slog.Logger, metrics prometheus.Registerer) (*register.Registrar, error) {
	if f.registrationDir == "" {
		return nil, nil
	}
	endpoint, err := unixsock.ParseEndpoint(cmp.Or(f.announced, f.endpoint))
	if err != nil {
		return nil, fmt.Errorf("--registration-endpoint: %w", err)
	}
	r, err := register.New(register.Config{
		Plugin: register.Plugin{Type: register.CSI, Name: f.driverName, Endpoint: endpoint, Versions: []string{announcedVersion}},
		Dir:    f.registrationDir, Logger: logger, Metrics: metrics,
	})
	if err != nil {
		return nil, fmt.Errorf("--registration-dir: %w", err)
	}
	return r, metrics.Register(r.Collector())
}
