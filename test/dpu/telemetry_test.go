package dpu

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"

	"github.com/cleatproject/cleat/internal/unixsock"
)

// statusReport is the plugin's part of /status.
type statusReport struct {
	Objects   int               `json:"objects"`
	Leftovers map[string]string `json:"leftovers"`
}

// status reads it from the telemetry socket.
func (s *site) status() (statusReport, error) {
	to := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return unixsock.Dial(ctx, s.telemetry()) }, DisableKeepAlives: true}
	r, err := http.NewRequestWithContext(s.ctx, http.MethodGet, "http://plugin/status", nil)
	if err != nil {
		return statusReport{}, err
	}
	answer, err := (&http.Client{Transport: to}).Do(r)
	if err != nil {
		return statusReport{}, err
	}
	defer answer.Body.Close()
	var found struct {
		DPU *statusReport `json:"dpu"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&found); err != nil {
		return statusReport{}, err
	}
	if found.DPU == nil {
		return statusReport{}, errors.New("the status has no part dpu")
	}
	return *found.DPU, nil
}
