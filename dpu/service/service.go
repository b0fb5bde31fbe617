// Package service serves the contract between DPF and a storage vendor's
// plugin, nvidia.storage.plugins.v1, as its published text says it. What a call
// means is done by package plugin.
package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/plugin"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/dpu/table"
)

// Devices carries out what is asked; see plugin.Plugin.
type Devices interface {
	Create(ctx context.Context, q request.Create) (deviceName string, err error)
	Delete(ctx context.Context, d request.Device) error
	Get(ctx context.Context, d request.Device) (table.Device, error)
	List(ctx context.Context, p request.Page) (page []table.Device, more bool, err error)
	Ready(ctx context.Context) (bool, error)
	Offer(ctx context.Context) (plugin.Offer, error)
}

// Config says what a Server serves.
type Config struct {
	Name     string            // of GetPluginInfo: a domain name of at most 63 characters
	Version  string            // of GetPluginInfo
	Manifest map[string]string // of GetPluginInfo, at least one entry
	// Provider is the directory of the SNAP process below .../snap/providers.
	// Empty is the contract's word for NVIDIA's default process.
	Provider string
	Devices  Devices
}

// Server is both services. Its errors are for Code to judge.
type Server struct {
	storagev1.UnimplementedIdentityServiceServer
	storagev1.UnimplementedStoragePluginServiceServer
	config Config
}

// label and name are those of RFC 1035 section 2.3.1.
const label = `[a-zA-Z]([a-zA-Z0-9-]*[a-zA-Z0-9])?`

var namePattern = regexp.MustCompile(`^` + label + `(\.` + label + `)*$`)

const (
	maxName     = 63  // bytes, by the contract
	maxProvider = 255 // bytes of one element of a path
)

// New makes a Server. It refuses what no node driver could use.
func New(c Config) (*Server, error) {
	switch {
	case len(c.Name) > maxName || !namePattern.MatchString(c.Name):
		return nil, fmt.Errorf("the plugin cannot be called %.80q: the contract wants a domain name of at most %d characters, as dpu.cleat.dev", c.Name, maxName)
	case c.Version == "":
		return nil, errors.New("the plugin needs a version for GetPluginInfo")
	case len(c.Manifest) == 0:
		return nil, errors.New("the plugin needs a manifest for GetPluginInfo: the contract requires at least one entry")
	case c.Provider == "." || c.Provider == ".." || len(c.Provider) > maxProvider || strings.ContainsAny(c.Provider, "/\x00"):
		return nil, fmt.Errorf("the SNAP provider cannot be called %.80q: the node driver looks for its socket in the directory of that name, as snap of .../providers/snap/snap.sock", c.Provider)
	case c.Devices == nil:
		return nil, errors.New("the plugin's service has no devices to serve")
	}
	c.Manifest = maps.Clone(c.Manifest)
	return &Server{config: c}, nil
}

// Register adds both services to a server.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	storagev1.RegisterIdentityServiceServer(r, s)
	storagev1.RegisterStoragePluginServiceServer(r, s)
}

// Private are the fields of requests that no log may show: the contract has no
// place for secrets, so people put them where there is one.
func Private() []protoreflect.FullName {
	create := (&storagev1.CreateDeviceRequest{}).ProtoReflect().Descriptor()
	var all []protoreflect.FullName
	for _, field := range []protoreflect.Name{"publish_context", "volume_context", "storage_parameters"} {
		all = append(all, create.FullName().Append(field))
	}
	return all
}
