package register

import (
	"context"
	"slices"
	"strings"
	"time"

	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// maxText bounds what is kept of a host's text, in bytes.
const maxText = 4 << 10

// service answers the host. It never waits: a kubelet gives GetInfo one second.
type service struct {
	registration.UnimplementedRegistrationServer
	*Registrar
}

// GetInfo says who the plugin is.
func (s service) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	s.note(func(r *record, now time.Time) { r.question(now) })
	return &registration.PluginInfo{
		Type: s.plugin.Type, Name: s.plugin.Name, Endpoint: s.plugin.Endpoint, SupportedVersions: slices.Clone(s.plugin.Versions),
	}, nil
}

// NotifyRegistrationStatus takes the host's word. A refusal is answered like a
// success: it is the host that tries again, and to end here would only make it
// wait longer.
func (s service) NotifyRegistrationStatus(ctx context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	text := status.GetError()
	text = strings.ToValidUTF8(text[:min(len(text), maxText)], "")
	counts := false
	s.note(func(r *record, now time.Time) { counts = r.answer(now, status.GetPluginRegistered(), text) })
	if !counts {
		s.logger.DebugContext(ctx, "a host speaks of an earlier registration socket", "registered", status.GetPluginRegistered(), "error", text)
	} else if s.told != nil {
		s.told(status.GetPluginRegistered(), text)
	}
	return &registration.RegistrationStatusResponse{}, nil
}
