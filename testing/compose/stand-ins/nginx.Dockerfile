# Stands in for the official image of nginx.
FROM quotagate-stand-in:base
RUN rm /etc/nginx/sites-enabled/default
EXPOSE 80
CMD ["nginx", "-g", "daemon off;"]
