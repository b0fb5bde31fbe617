package dpu

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"

	"github.com/cleatproject/cleat/internal/unixsock"
)

// told is what the plugin tells of itself.
type told struct {
	Objects   int               `json:"objects"`
	Leftovers map[string]string `json:"leftovers"`
}

// status asks for it, on the telemetry socket.
func (s *site) status() (told, error) {
	to := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return unixsock.Dial(ctx, s.telemetry()) }, DisableKeepAlives: true}
	r, err := http.NewRequestWithContext(s.ctx, http.MethodGet, "http://plugin/status", nil)
	if err != nil {
		return told{}, err
	}
	answer, err := (&http.Client{Transport: to}).Do(r)
	if err != nil {
		return told{}, err
	}
	defer answer.Body.Close()
	var found struct {
		DPU *told `json:"dpu"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&found); err != nil {
		return told{}, err
	}
	if found.DPU == nil {
		return told{}, errors.New("the status has no part of that name")
	}
	return *found.DPU, nil
}
