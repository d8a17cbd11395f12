"""The nginx to compare with: one worker, connections to the engine kept open, no buffering."""

from pathlib import Path

CONFIG = """\
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
worker_processes 1;
worker_rlimit_nofile 8192;
events {{ worker_connections 8192; }}
http {{
  access_log {folder}/access.log;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream engine {{
    server 127.0.0.1:{engine};
    keepalive 1024;
    keepalive_timeout 4s;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    client_max_body_size 32m;
    location / {{
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $host;
      proxy_buffering off;
      proxy_request_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""


def nginx_command(folder: Path, engine: int, port: int) -> list[str]:
    """Write a configuration into `folder` and return the command that runs it. It needs nginx on the path."""
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(folder=folder, engine=engine, port=port))
    return ["nginx", "-e", str(folder / "error.log"), "-p", str(folder), "-c", str(config)]
