package csi

import (
	"context"
	"regexp"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cleatproject/cleat/errs"
)

// DefaultName is the plugin's name where none is configured.
const DefaultName = "csi.cleat.dev"

// homePage stands in the manifest.
const homePage = "https://github.com/cleatproject/cleat"

// IdentityConfig says who the plugin is.
type IdentityConfig struct {
	Name      string // a domain name of up to 63 bytes; empty: DefaultName
	Version   string // of the program
	Engine    string // its word in the configuration
	Announced Announcement
	// Ready tells whether calls can be served. false without an error is a
	// start that is still going on; an error is a plugin that needs help. It
	// is asked often and must be quick.
	Ready func(ctx context.Context) (bool, error)
}

// Identity is CSI's Identity service.
type Identity struct {
	spec.UnimplementedIdentityServer
	config IdentityConfig
}

var domainName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$`)

// CheckName refuses what cannot be a plugin's name. It ends up in paths and in
// the names of Kubernetes objects.
func CheckName(name string) error {
	if len(name) > 63 || !domainName.MatchString(name) {
		return errs.Errorf(errs.Invalid, "driver name %q is not a domain name of at most 63 letters, digits, dashes and dots, as %s is", name, DefaultName)
	}
	return nil
}

// NewIdentity makes the service.
func NewIdentity(c IdentityConfig) (*Identity, error) {
	if c.Name == "" {
		c.Name = DefaultName
	}
	if c.Version == "" {
		return nil, errs.Errorf(errs.Internal, "the identity service needs the version of the program")
	}
	if c.Ready == nil {
		c.Ready = func(context.Context) (bool, error) { return true, nil }
	}
	if err := CheckName(c.Name); err != nil {
		return nil, err
	}
	return &Identity{config: c}, nil
}

// GetPluginInfo tells name and version.
func (i *Identity) GetPluginInfo(context.Context, *spec.GetPluginInfoRequest) (*spec.GetPluginInfoResponse, error) {
	manifest := map[string]string{"url": homePage}
	if i.config.Engine != "" {
		manifest["engine"] = i.config.Engine
	}
	return &spec.GetPluginInfoResponse{Name: i.config.Name, VendorVersion: i.config.Version, Manifest: manifest}, nil
}

// GetPluginCapabilities tells what all instances of this configuration offer
// together.
func (i *Identity) GetPluginCapabilities(context.Context, *spec.GetPluginCapabilitiesRequest) (*spec.GetPluginCapabilitiesResponse, error) {
	return &spec.GetPluginCapabilitiesResponse{Capabilities: i.config.Announced.PluginCapabilities()}, nil
}

// Probe tells whether calls can be served. Precondition: the plugin is not
// healthy or lacks something it depends on.
func (i *Identity) Probe(ctx context.Context, _ *spec.ProbeRequest) (*spec.ProbeResponse, error) {
	ready, err := i.config.Ready(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, err
	case err != nil:
		return nil, errs.Errorf(errs.Precondition, "the plugin is not healthy: %w", err)
	}
	return &spec.ProbeResponse{Ready: wrapperspb.Bool(ready)}, nil
}
