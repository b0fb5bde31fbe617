package register

import (
	"context"
	"slices"
	"strings"
	"time"

	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// maxText bounds a host's error in bytes.
const maxText = 4 << 10

// service never blocks: a kubelet gives GetInfo one second.
type service struct {
	registration.UnimplementedRegistrationServer
	*Registrar
}

// GetInfo describes the plugin.
func (s service) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	s.update(func(r *record, now time.Time) { r.getInfo(now) })
	return &registration.PluginInfo{
		Type: s.plugin.Type, Name: s.plugin.Name, Endpoint: s.plugin.Endpoint, SupportedVersions: slices.Clone(s.plugin.Versions),
	}, nil
}

// NotifyRegistrationStatus records the host's result. An error is answered like
// success: the host retries, which ending the plugin would only delay.
func (s service) NotifyRegistrationStatus(ctx context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	text := status.GetError()
	text = strings.ToValidUTF8(text[:min(len(text), maxText)], "")
	counts := false
	s.update(func(r *record, now time.Time) { counts = r.notified(now, status.GetPluginRegistered(), text) })
	if !counts {
		s.logger.DebugContext(ctx, "registration result for an earlier socket ignored", "registered", status.GetPluginRegistered(), "err", text)
	} else if s.onResult != nil {
		s.onResult(status.GetPluginRegistered(), text)
	}
	return &registration.RegistrationStatusResponse{}, nil
}
